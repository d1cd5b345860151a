"""One page about a layout: its ranks, stages and groups, and the timeline of a step. It needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.planning.drawing.colours import stage_colour
from orchestrator.planning.drawing.ranks import drawn_nodes, layers_text, node_svg, ranks_svg, what_is_drawn
from orchestrator.planning.drawing.svg import STYLE, element
from orchestrator.planning.drawing.timeline import bubble_share, timeline_svg
from orchestrator.planning.layout.pipeline import Timeline
from orchestrator.planning.layout.topology import Topology, crossing
from orchestrator.run_directory.rundir import write_atomically

_DOCTYPE = "<!doctype html>"
_PAGE_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--faint:#5b6470;--line:#d5dae0}
@media (prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e8eaed;--faint:#a3abb5;--line:#3a4149}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--paper);color:var(--ink);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.2rem 0 1rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2rem 0 .5rem}
p{margin:.4rem 0}.note{color:var(--faint)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .9rem;margin:0}
dt{color:var(--faint)}dd{margin:0;overflow-wrap:anywhere}
.nodes{display:flex;flex-wrap:wrap;gap:10px}.nodes svg{max-width:100%;height:auto}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th,td{white-space:nowrap}.Groups td:last-child{white-space:normal;min-width:18rem}th{font-weight:600;color:var(--faint)}
.right{text-align:right}
.verdict{white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:.85rem;
border-left:3px solid var(--line);padding-left:.8rem}
.chip{display:inline-block;min-width:2.2em;padding:0 .4em;border-radius:3px;text-align:center;font-weight:600}
"""


@dataclass(frozen=True)
class Rows:
    """A table of text. `numbers`: columns that are written to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class PageText:
    """What the page says beside its drawings. `facts`: labels and texts for its head; `verdict`: lines of text."""

    facts: tuple[tuple[str, str], ...] = ()
    verdict: tuple[str, ...] = ()
    tables: tuple[Rows, ...] = ()


def page_html(name: str, said: PageText, layout: Topology, step: Timeline, *, in_seconds: bool) -> str:
    """The page of a job. `in_seconds` is timeline_svg's."""
    parts = [
        element("h1", text=f"Plan of {name}"),
        element("dl", *(element("dt", text=label) + element("dd", text=text) for label, text in said.facts)),
        *_verdict(said.verdict),
        *(part for table in said.tables for part in _rows(table)),
        *_ranks(layout),
        *_stages(layout),
        *_groups(layout),
        *_timeline(step, in_seconds),
    ]
    head = element(
        "head",
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">',
        element("title", text=f"Plan of {name}"),
        element("style", STYLE + _PAGE_STYLE),
    )
    return f"{_DOCTYPE}\n" + element("html", head, element("body", element("main", *parts)), lang="en") + "\n"


def write_page(path: Path, name: str, said: PageText, layout: Topology, step: Timeline, *, in_seconds: bool) -> None:
    """Write the page of a job. Raises UserError where it cannot be written, or another file than a page is there."""
    if _is_another_file(path):
        raise UserError(f"{path} exists and is not an HTML page: choose another file", code="not_an_html_page")
    _write(path, page_html(name, said, layout, step, in_seconds=in_seconds))


def write_drawings(folder: Path, layout: Topology, step: Timeline, *, in_seconds: bool) -> list[Path]:
    """Write ranks.svg and timeline.svg into a folder, made where it is missing. Raises UserError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}", code="unwritable_folder") from error
    ranks, timeline = folder / "ranks.svg", folder / "timeline.svg"
    _write(ranks, ranks_svg(layout))
    _write(timeline, timeline_svg(step, in_seconds=in_seconds))
    return [ranks, timeline]


def _is_another_file(path: Path) -> bool:
    """Whether a file is there that nothing like this wrote: the job itself, behind an option that was mistyped."""
    if not path.is_file():
        return False  # a pipe is no file, and opening one would wait
    try:
        with open(path, "rb") as file:
            start = file.read(len(_DOCTYPE))
    except OSError:
        return False  # what keeps it from being read mostly keeps it from being written, which is told
    return start.lower() not in (b"", _DOCTYPE.encode())


def _write(path: Path, text: str) -> None:
    """What is there stays where the new one cannot be written whole. A pipe takes what it is given."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            write_atomically(path.resolve(), text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", code="unwritable_output") from error


def _verdict(lines: Iterable[str]) -> list[str]:
    text = "\n".join(lines)
    return [element("h2", text="Verdict"), element("div", text=text, class_="verdict")] if text else []


def _rows(table: Rows) -> list[str]:
    sides = ["right" if number in table.numbers else "" for number in range(len(table.columns))]
    head = [
        element("th", text=column, scope="col", class_=side) for column, side in zip(table.columns, sides, strict=True)
    ]
    body = [
        element("tr", *(element("td", text=cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in table.rows
    ]
    made = element("table", element("thead", element("tr", *head)), element("tbody", *body), aria_label=table.title)
    return [element("h2", text=table.title), element("div", made, class_="wide")]


def _ranks(layout: Topology) -> list[str]:
    outlined = "; GPUs of a tensor group share an outline" if layout.tensor_model_parallel_size > 1 else ""
    text = (
        f"{what_is_drawn(layout)}. A box shows its rank and (tp,cp,dp,pp); the colour is its pipeline stage{outlined}."
    )
    nodes = [node_svg(layout, node, styled=False) for node in drawn_nodes(layout)]
    return [element("h2", text="Ranks"), element("p", text=text, class_="note"), element("div", *nodes, class_="nodes")]


def _stages(layout: Topology) -> list[str]:
    stages = layout.pipeline_model_parallel_size
    size, per_node = layout.world_size // stages, layout.processes_per_node
    rows = []
    for stage, chunks in enumerate(layout.stages):
        colour = stage_colour(stage, stages)
        chip = element("span", text=str(stage), class_="chip", style=f"background:{colour.fill};color:{colour.ink}")
        first, last = stage * size, (stage + 1) * size - 1
        rows.append([chip, layers_text(chunks), _span(first, last), _span(first // per_node, last // per_node)])
    return _table("Pipeline stages", ("stage", "layers", "ranks", "nodes"), rows)


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}\u2013{last:,}"


def _groups(layout: Topology) -> list[str]:
    kinds = layout.groups
    rows = [[name, f"{each.size:,}", str(each), f"{kinds[name].exchanges}"] for name, each in crossing(layout).items()]
    if not rows:
        return []
    return _table("Groups", ("kind", "ranks in each", "on nodes", "exchange"), rows)


def _table(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table under a heading. A cell that begins with < is an element."""
    head = element("tr", *(element("th", text=column, scope="col") for column in columns))
    body = [
        element("tr", *(element("td", cell) if cell.startswith("<") else element("td", text=cell) for cell in row))
        for row in rows
    ]
    table = element("table", element("thead", head), element("tbody", *body), aria_label=name, class_=name)
    return [element("h2", text=name), element("div", table, class_="wide")]


def _timeline(step: Timeline, in_seconds: bool) -> list[str]:
    least = min(step.idle(stage) for stage in range(len(step.spans))) / step.seconds
    units = "" if in_seconds else " Its unit is the forward pass of a whole stage; a backward pass counts as two."
    text = (
        "Each stage's passes over its micro-batches, which are numbered; hatched where the stage waits. "
        f"A stage waits {bubble_share(step):.1%} of the step on average, the busiest one {least:.1%}.{units}"
    )
    drawn = element("div", timeline_svg(step, in_seconds=in_seconds, styled=False), class_="wide", tabindex=0)
    return [element("h2", text="Timeline of a step"), element("p", text=text, class_="note"), drawn]
