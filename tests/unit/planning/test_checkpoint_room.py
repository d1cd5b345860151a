"""Room on the disk: what is kept at once, and advice that is followed leaves no warning."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.refusals import leave_room

from orchestrator.errors import Problem
from orchestrator.planning.checks.checkpoint_room import room_for_checkpoints
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

MODEL = {"num_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096, "vocab_size": 128_000}


class Disk:
    """A disk with room for so many checkpoints of a job, and what is said of it."""

    def __init__(self, make_job: Any, patched: pytest.MonkeyPatch) -> None:
        self._make_job, self._patched = make_job, patched

    def job(self, saving: dict[str, Any]) -> JobSpec:
        made: JobSpec = self._make_job(model=MODEL, launch={"gpu": "H100"}, checkpoint=saving)
        return made

    def warnings(self, job: JobSpec, room: float) -> list[Problem]:
        plan = make_plan(job)
        taken = forecast(plan)
        leave_room(self._patched, int(room * taken.checkpoint_bytes))
        return list(room_for_checkpoints(plan, taken, None))

    def said(self, saving: dict[str, Any], room: float = 0) -> tuple[str, str]:
        """(message, hint)."""
        [warning] = self.warnings(self.job(saving), room)
        return warning.message, warning.hint or ""


@pytest.fixture
def disk(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(make_job, monkeypatch)


def test_the_checkpoints_that_are_written(disk: Disk) -> None:
    """One at the end; on the way, as many as are kept and the one that is being written."""
    counted = [
        disk.said(saving)[0].split(" of ")[0]
        for saving in ({}, {"save_interval": 50}, {"save_interval": 10}, {"save_interval": 10, "keep_every": 20})
    ]
    assert counted == ["a checkpoint", "3 checkpoints", "4 checkpoints", "9 checkpoints"]


def test_exports(disk: Disk) -> None:
    """In the format of the weights, all of them or those that are kept and the one that is being written."""
    counted = []
    for more in ({}, {"keep_last": 1}):
        saving = {"save_interval": 10, "export": {"interval": 20, **more}}
        counted.append(disk.said(saving)[0].split(" and ")[1].split(" of ")[0])
    assert counted == ["5 exports", "2 exports"]


@pytest.mark.parametrize(
    ("saving", "room", "options"),
    [
        ({"save_interval": 10}, 3.5, ["checkpoint.keep_last=2"]),
        ({"save_interval": 10}, 2, ["checkpoint.keep_last=1"]),
        ({"save_interval": 10, "keep_every": 20}, 7.5, ["checkpoint.keep_last=1"]),
        ({"save_interval": 10, "keep_every": 20}, 4, ["checkpoint.keep_every=null"]),
        ({"save_interval": 10, "keep_every": 20}, 3, ["checkpoint.keep_every=null", "checkpoint.keep_last=2"]),
        ({"save_interval": 10, "export": {"interval": 10}}, 4.5, ["checkpoint.keep_last=2"]),
        ({"save_interval": 10, "keep_last": 1, "export": {"interval": 10}}, 2.5, ["checkpoint.export.keep_last=1"]),
    ],
)
def test_keeping_fewer_is_offered_where_it_suffices(
    disk: Disk, saving: dict[str, Any], room: float, options: list[str]
) -> None:
    job = disk.job(saving)
    [warning] = disk.warnings(job, room)
    assert warning.hint is not None
    assert warning.hint.startswith("there is room with ")
    assert re.findall(r"--set ([^\s;]+)", warning.hint) == options
    written = json.dumps(job.model_dump(mode="json", exclude_unset=True))
    assert disk.warnings(load_text(written, "job", options).job, room) == []


def test_where_keeping_fewer_does_not_suffice_it_is_not_offered(disk: Disk) -> None:
    saving = {"save_interval": 10, "keep_last": 2}
    size = disk.said({})[0].split(" of ")[1].split(" is kept")[0]
    assert disk.said({}, 0.9)[1] == f"write to a disk with {size} free, with launch.runs_dir"
    for room in (0.9, 1.9):
        hint = disk.said(saving, room)[1]
        assert hint.startswith(
            "keeping fewer does not suffice, because a new one is written before the old one is removed: write"
        )
        assert "--set" not in hint
