"""Back into the queue: what SLURM answers of a job whose processes are still ending."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_slurm import FakeSlurm
from support.limits import set_limits
from support.refused import refused

from orchestrator.errors import SchedulerError
from orchestrator.executors.slurm import requeue_command

ENDS = "Job has already finished for job 5"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A scheduler that knows no job."""
    fake = FakeSlurm(tmp_path / "slurm")
    fake.says("squeue")
    monkeypatch.setenv("PATH", str(fake.bin), prepend=":")
    set_limits(monkeypatch, between_requeues=0.0)
    return fake


def asked(slurm: FakeSlurm) -> list[str]:
    """The first words of what the controller was told."""
    return [words[0] for words in slurm.calls("scontrol")]


def answering(slurm: FakeSlurm, *calls: int) -> str:
    """What the controller does: these calls find a job that still ends."""
    count = f"$(/usr/bin/wc -l < '{slurm.folder}/scontrol.calls')"
    return f"case {count} in {'|'.join(map(str, calls))}) echo '{ENDS}' >&2; exit 1;; esac"


def test_a_job_that_still_ends_is_told_when_it_has(slurm: FakeSlurm) -> None:
    slurm.says("scontrol", delay=answering(slurm, 2, 3))
    requeue_command.requeue_later("5", 0, delay=30.0)
    assert asked(slurm) == ["requeue", "update", "update", "update"]


def test_one_that_stays_over_is_a_failure(slurm: FakeSlurm) -> None:
    slurm.says("scontrol", delay=answering(slurm, 2, 3, 4))
    with refused("scheduler_command_failed", "scontrol", ENDS, kind=SchedulerError):
        requeue_command.requeue_later("5", 0, exclude=["n1"])
    assert asked(slurm) == ["requeue", "update", "update", "update"]
