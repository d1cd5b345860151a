"""Programs that commands start in place of ours, by the name of their module: fakes of a training and others."""

from __future__ import annotations

import functools
import pkgutil

import pytest

NAMED = {
    "bench": "orchestrator.bench.measurement.MODULE",
    "calibration": "orchestrator.cli.jobs.calibration.PROGRAM",
    "evaluation": "orchestrator.cli.models.evaluate.EVALUATION_MODULE",
    "sending in the background": "orchestrator.tracking.follower.SENDER",
}
"""Where the name of a program stands."""
STARTED = {
    "inference": "orchestrator.cli.models.generate.run_inference",
    "layouts": "orchestrator.cli.jobs.tune.Trials",
    "sweeps": "orchestrator.cli.runs.sweeps.start.local_request",
    "sweeps on clusters": "orchestrator.cli.runs.sweeps.start.SweepStart",
    "searches": "orchestrator.cli.runs.sweeps.search.start_searching",
    "job.run": "orchestrator.api.starts.local.launch_with_restarts",
    "training": "orchestrator.cli.run_start.launch_with_restarts",
}
"""What starts a program, and takes another one's name."""


def run_instead(monkeypatch: pytest.MonkeyPatch, module: str, *programs: str) -> None:
    """Have commands run a module in place of these programs."""
    for program in programs:
        place = NAMED.get(program) or STARTED[program]
        found = module if program in NAMED else functools.partial(pkgutil.resolve_name(place), module=module)
        monkeypatch.setattr(place, found)
