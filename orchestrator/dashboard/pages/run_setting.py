"""What a run is: its spec, its plan held against what it measured, and the code that ran."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from markupsafe import Markup

from orchestrator.dashboard.pages.asked import PREFIX, Asked, section
from orchestrator.dashboard.settings import Shared, shared
from orchestrator.planning.drawing import timeline_svg
from orchestrator.planning.drawing.ranks import drawn_nodes, layers_text, node_svg, what_is_drawn
from orchestrator.planning.topology import crossing
from orchestrator.review.damage import readable
from orchestrator.review.discretion import Discretion
from orchestrator.review.measured import Planned, Row, planned_of, rows_of, timeline_of
from orchestrator.review.specs import Generation, differences, fields_of, generations_of, text_of
from orchestrator.review.summary import RunSummary

router = APIRouter(prefix=PREFIX)


@router.get("/spec")
def spec(
    request: Request,
    run: Asked,
    its: Annotated[Shared, Depends(shared)],
    generation: Annotated[int | None, Query(ge=1)] = None,
    against: Annotated[str, Query(max_length=400)] = "",
    q: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Its spec as written and resolved, and what it changed: against the generation before, or another run
    (`against`: NAME/ID).
    """
    found = generations_of(run.run)
    if generation is not None and generation > len(found):
        raise HTTPException(404, f"run {run.key} has no spec {generation}")
    shown = found[generation - 1 if generation is not None else -1]
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
    kept = {key: value for key, value in said.items() if wanted in key.casefold() or wanted in value.casefold()}
    values: dict[str, Any] = {
        "generations": found,
        "shown": shown,
        "fields": kept,
        "of_all": len(said),
        "written": discretion.text(written) if written is not None else missing,
        "changed": changed if changed is None else [each.said(discretion) for each in changed],
        "against": against,
        "q": q,
        "problem": problem or trouble,
    }
    return section(request, run, "spec", "run_spec.html", values)


@router.get("/plan")
def plan(request: Request, run: Asked, its: Annotated[Shared, Depends(shared)]) -> Response:
    """Its plan beside what it measured, where its ranks are, and the passes of a step."""
    planned, problem = readable(lambda: planned_of(run.run))
    values: dict[str, Any] = {"planned": planned, "problem": problem, "rows": [], "ranks": None, "timeline": None}
    if planned is not None:
        rows, trouble = readable(lambda: _rows(planned, its, run))
        values |= {"rows": rows or [], "problem": trouble, **_drawn(planned)}
    return section(request, run, "plan", "run_plan.html", values)


def _rows(planned: Planned, its: Shared, run: RunSummary) -> list[Row]:
    with its.index.reading(run.run) as series:
        return rows_of(planned, series, run.run.events())


def _drawn(planned: Planned) -> dict[str, Any]:
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
    texts = {
        name: readable(partial(text_of, run.run.path / name))[0] for name in ("launch.sh", "launch.sbatch", "code.diff")
    }
    discretion = _discretion(generations_of(run.run))
    values = {
        **read,
        "texts": {name: discretion.text(text) for name, text in texts.items() if text},
    }
    return section(request, run, "code", "run_code.html", values)


def _discretion(generations: Sequence[Generation], *more: Path) -> Discretion:
    """What is kept secret by every spec that a run had, as far as they can be read, and by others."""
    read = [readable(partial(fields_of, path))[0] for path in (*(each.resolved for each in generations), *more)]
    return Discretion([fields for fields in read if fields is not None])
