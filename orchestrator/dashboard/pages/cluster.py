"""What runs take of the cluster: jobs, GPU-hours, and waits in queues."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages.parts import Begin, part_of
from orchestrator.dashboard.settings import Its, Shared
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.usage import RunUsage, Usage, days_figure, gpus_of, usage

Period = Literal["7d", "30d", "all"]
PERIODS: dict[Period, tuple[str, int | None]] = {"7d": ("7 days", 7), "30d": ("30 days", 30), "all": ("all time", None)}
_ACTIVE = 100
"""Of a page."""

router = APIRouter(prefix="/cluster")


@router.get("")
def cluster(request: Request, its: Its, period: Period = "7d", begin: Begin = 0) -> Response:
    """Jobs by state, what is at work or waits, and what was taken by whom."""
    runs = its.index.runs
    active = [(run, gpus_of(run), _since(run, took)) for run, took in its.usage.of(runs) if run.is_active]
    active.sort(key=lambda each: (each[0].state == "queued", -(each[2] or 0.0)))
    waiting = sum(run.state == "queued" for run, _, _ in active)
    use = _usage(its, period)
    values = {
        "use": use,
        "taken_now": _taken_now(use),
        "runs": runs,
        "active": part_of(active, begin, _ACTIVE, {"period": period}),
        "at_work": len(active) - waiting,
        "waiting": waiting,
        "is_complete": its.index.is_complete,
        "period": period,
        "periods": {key: label for key, (label, _) in PERIODS.items()},
    }
    return page(request, "cluster.html", values)


@router.get("/figure")
def figure(its: Its, period: Period = "7d") -> Response:
    """GPU-hours by day."""
    return JSONResponse(days_figure(_usage(its, period)))


def _since(run: RunSummary, took: RunUsage) -> float | None:
    """When a run that waits began to, which may be long after it was made, or when one that works was started."""
    return (took.waiting_since or run.created) if run.state == "queued" else (run.launched or run.created)


def _taken_now(use: Usage) -> str:
    """`3 GPUs and 1 process on CPUs are`; GPUs where nothing is at work."""
    parts = (
        [f"{use.gpus_now:,} {'GPU' if use.gpus_now == 1 else 'GPUs'}"] if use.gpus_now or not use.processes_now else []
    )
    if use.processes_now:
        parts.append(f"{use.processes_now:,} {'process' if use.processes_now == 1 else 'processes'} on CPUs")
    return f"{' and '.join(parts)} {'is' if use.gpus_now + use.processes_now == 1 else 'are'}"


def _usage(its: Shared, period: Period) -> Usage:
    now = time.time()
    days = PERIODS[period][1]
    return usage(its.usage.of(its.index.runs), None if days is None else now - days * 86400, now)
