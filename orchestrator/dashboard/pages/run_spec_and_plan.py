"""What a run is: its spec, its plan held against what it measured, and the code that ran."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import PlainTextResponse
from markupsafe import Markup

from orchestrator.dashboard.pages.parts import beginning
from orchestrator.dashboard.pages.run_common import PREFIX, Asked, AskedFolder, section
from orchestrator.dashboard.settings import Its, Shared
from orchestrator.fields.formatting import shorten
from orchestrator.planning.drawing import timeline_svg
from orchestrator.planning.drawing.ranks import drawn_nodes, layers_text, node_svg, what_is_drawn
from orchestrator.planning.layout.topology import crossing
from orchestrator.review.charts.plan_vs_actual import Row, RunPlan, planned_of, rows_of, timeline_of
from orchestrator.review.damage import readable
from orchestrator.review.logs.page_size import fitting
from orchestrator.review.redaction import Redaction
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.specs import Difference, Generation, differences, fields_of, generations_of, text_of
from orchestrator.run_directory.rundir import RunDir

router = APIRouter(prefix=PREFIX)

CodeFile = Literal["launch.sh", "launch.sbatch", "code.diff"]
_BYTES_OF_A_TEXT = 12 << 10
_BYTES_OF_THE_FIELDS, _BYTES_OF_A_FIELD = 30 << 10, 100
_BYTES_OF_THE_CHANGES, _BYTES_OF_A_CHANGE = 10 << 10, 150
_LONGEST_VALUE = 1000
_MOST_OF_THE_ENVIRONMENT = 100
GenerationNumber = Annotated[int | None, Query(ge=1)]


@router.get("/spec")
def spec(
    request: Request,
    run: Asked,
    its: Its,
    generation: GenerationNumber = None,
    against: Annotated[str, Query(max_length=400)] = "",
    q: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Its spec as written and resolved, and what it changed: against the generation before, or another run
    (`against`: NAME/ID).
    """
    found = generations_of(run.run)
    shown = _asked_generation(run.run, found, generation)
    fields, problem = readable(partial(fields_of, shown.resolved))
    written, missing = readable(partial(text_of, shown.written))
    other = None
    if against:
        name, _, run_id = against.partition("/")
        parent = its.index.folder(name, run_id)
        if parent is None:
            problem = f"there is no run {against}"
        else:
            other = parent.resolved()
    elif shown.number > 1:
        other = found[shown.number - 2].resolved
    changed, trouble = readable(partial(differences, other, shown.resolved)) if other is not None else (None, None)
    discretion = _discretion(found, *([other] if other is not None else []))
    said = {key: discretion.field(key, value) for key, value in (fields or {}).items()}
    wanted = q.casefold()
    kept = [(key, value) for key, value in said.items() if wanted in key.casefold() or wanted in value.casefold()]
    listed = fitting(
        ((key, shorten(value, _LONGEST_VALUE)) for key, value in kept), "".join, _BYTES_OF_THE_FIELDS, _BYTES_OF_A_FIELD
    )
    told = None if changed is None else [each.said(discretion) for each in changed]
    differing = fitting(told or [], _words_of, _BYTES_OF_THE_CHANGES, _BYTES_OF_A_CHANGE)
    whole = f"spec/written?generation={shown.number}"
    values: dict[str, Any] = {
        "generations": found,
        "shown": shown,
        "fields": dict(listed),
        "found": len(kept),
        "of_all": len(said),
        "written": beginning(
            discretion.text(written) if written is not None else missing or "", _BYTES_OF_A_TEXT, whole
        ),
        "changed": differing if told is not None else None,
        "unshown": len(told or []) - len(differing),
        "against": against,
        "q": q,
        "problem": problem or trouble,
    }
    return section(request, run, "spec", "run_spec.html", values)


@router.get("/plan")
def plan(request: Request, run: Asked, its: Its) -> Response:
    """Its plan beside what it measured, where its ranks are, and the passes of a step."""
    planned, problem = readable(lambda: planned_of(run.run))
    values: dict[str, Any] = {"planned": planned, "problem": problem, "rows": [], "ranks": None, "timeline": None}
    if planned is not None:
        rows, trouble = readable(lambda: _rows(planned, its, run))
        values |= {"rows": rows or [], "problem": trouble, **_drawn(planned)}
    return section(request, run, "plan", "run_plan.html", values)


@router.get("/spec/written")
def spec_as_written(run: AskedFolder, generation: GenerationNumber = None) -> Response:
    """A spec as it was written."""
    found = generations_of(run)
    shown = _asked_generation(run, found, generation)
    return _whole(shown.written, _discretion(found))


def _asked_generation(run: RunDir, found: Sequence[Generation], number: int | None) -> Generation:
    if number is not None and number > len(found):
        raise HTTPException(404, f"run {run.name}/{run.run_id} has no spec {number}")
    return found[number - 1 if number is not None else -1]


def _words_of(difference: Difference) -> str:
    return difference.path + difference.old + difference.new + difference.reason


def _whole(path: Path, discretion: Redaction) -> Response:
    """All of a text file of a run, to be saved."""
    text, problem = readable(partial(text_of, path))
    if text is None:
        raise HTTPException(404, f"{path.name} cannot be read: {problem}")
    headers = {"Content-Disposition": f'attachment; filename="{path.name}"'}
    return PlainTextResponse(discretion.text(text), headers=headers)


def _rows(planned: RunPlan, its: Shared, run: RunSummary) -> list[Row]:
    with its.index.reading(run.run) as series:
        return rows_of(planned, series, run.run.events())


def _drawn(planned: RunPlan) -> dict[str, Any]:
    """The drawings, whose texts are escaped where they are made, and the same in words."""
    layout = planned.plan.topology
    step = timeline_of(planned)
    size = layout.world_size // layout.pipeline_model_parallel_size
    stages = [
        (stage, layers_text(chunks), stage * size, (stage + 1) * size - 1) for stage, chunks in enumerate(layout.stages)
    ]
    return {
        # Made of numbers and of texts that are escaped where the drawings are made.
        "ranks": Markup("").join(Markup(node_svg(layout, node, styled=False)) for node in drawn_nodes(layout)),
        "drawn": what_is_drawn(layout),
        "timeline": Markup(timeline_svg(step, in_seconds=True, styled=False)) if step is not None else None,
        "stages": stages,
        "groups": [(name, layout.groups[name].size, str(each)) for name, each in crossing(layout).items()],
    }


@router.get("/code")
def code(request: Request, run: Asked) -> Response:
    """The code that ran, and what it ran with."""
    files = {"code": "code.json", "environment": "environment.json"}
    read = {name: run.run.read_object(run.run.path / file) for name, file in files.items()}
    texts = {name: readable(partial(text_of, run.run.path / name))[0] for name in get_args(CodeFile)}
    discretion = _discretion(generations_of(run.run))
    shown = {
        name: beginning(discretion.text(text), _BYTES_OF_A_TEXT, f"code/{name}") for name, text in texts.items() if text
    }
    return section(request, run, "code", "run_code.html", {**read, "texts": shown, "most": _MOST_OF_THE_ENVIRONMENT})


@router.get("/code/{file}")
def code_file(run: AskedFolder, file: CodeFile) -> Response:
    """A script of its launch, or the changes of the code that ran."""
    return _whole(run.path / file, _discretion(generations_of(run)))


def _discretion(generations: Sequence[Generation], *more: Path) -> Redaction:
    """What is kept secret by every spec that a run had, as far as they can be read, and by others."""
    read = [readable(partial(fields_of, path))[0] for path in (*(each.resolved for each in generations), *more)]
    return Redaction([fields for fields in read if fields is not None])
