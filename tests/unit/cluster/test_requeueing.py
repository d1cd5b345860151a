"""Back into the queue: what SLURM answers of a job whose processes are still ending."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.cluster import requeueing
from orchestrator.cluster.commands import Answer
from orchestrator.errors import SchedulerError

ENDS = "Job has already finished for job 5"


def asked(monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, str]]) -> list[str]:
    """The second words of what is asked of a controller that answers (code, what it says) in this order."""
    commands: list[str] = []

    def run(command: Sequence[str]) -> Answer:
        commands.append(command[1])
        code, said = answers.pop(0)
        return Answer(command[0], code, "", said)

    monkeypatch.setattr(requeueing, "run", run)
    monkeypatch.setattr(requeueing, "job_states", lambda jobs: {})
    monkeypatch.setattr(requeueing, "_SECONDS_BETWEEN_ATTEMPTS", 0.0)
    return commands


def test_a_job_that_still_ends_is_told_when_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = asked(monkeypatch, [(0, ""), (1, ENDS), (1, ENDS), (0, "")])
    requeueing.requeue_later("5", 0, delay=30.0)
    assert commands == ["requeue", "update", "update", "update"]


def test_one_that_stays_over_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = asked(monkeypatch, [(0, ""), (1, ENDS), (1, ENDS), (1, ENDS)])
    with pytest.raises(SchedulerError, match=ENDS):
        requeueing.requeue_later("5", 0, exclude=["n1"])
    assert commands == ["requeue", "update", "update", "update"]
