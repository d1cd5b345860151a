"""What an exception means, and the record a rank leaves."""

from __future__ import annotations

import errno
import json
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from orchestrator.errors import (
    CheckpointError,
    DataError,
    LeaseLost,
    MissingDependency,
    Problem,
    RunIsHeld,
    SpecError,
    UserError,
)
from orchestrator.run_directory.exits.causes import lost_a_peer
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.processes.exits import DiskFullError, DivergenceError, Outcome, outcome_of, write_exit_record

CAUSES = [
    (DivergenceError("3 bad steps"), "nan", "3 bad steps"),
    (LeaseLost("taken over"), "lease_lost", "taken over"),
    (RunIsHeld("pid 3"), "held", "pid 3"),
    (CheckpointError("none"), "checkpoint", "none"),
    (UserError("wrong"), "user_error", "wrong"),
    (DataError("torn"), "user_error", "torn"),
    (SpecError(problems=[Problem("bad spec", ("model",))]), "user_error", "model: bad spec"),
    (MissingDependency("no engine"), "user_error", "no engine"),
    (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory", "CUDA out of memory"),
    (MemoryError("host"), "host_out_of_memory", "host"),
    (OSError(errno.ENOSPC, "No space left on device", "/x"), "disk_full", "no space left on device: /x"),
    (OSError(errno.EDQUOT, "Disk quota exceeded", "/x"), "disk_full", "no space left on device: /x"),
    (OSError(errno.EFBIG, "File too large", "/x"), "disk_full", "no space left on device: /x"),
    (DiskFullError("iteration 20: no space"), "disk_full", "iteration 20: no space"),
    (OSError(errno.EACCES, "Permission denied"), "bug", "PermissionError: [Errno 13] Permission denied"),
    (KeyError("a"), "bug", "KeyError: 'a'"),
    (RuntimeError("CUDA error: unknown error"), "gpu_error", "RuntimeError: CUDA error: unknown error"),
    (KeyboardInterrupt(), "bug", "KeyboardInterrupt: "),
]


@pytest.mark.parametrize(("error", "cause", "message"), CAUSES, ids=[type(case[0]).__name__ for case in CAUSES])
def test_cause(error: BaseException, cause: str, message: str) -> None:
    assert outcome_of(error) == Outcome(cause, message)


def test_only_what_was_asked_for_is_a_success() -> None:
    codes = {cause: Outcome(cause).exit_code for cause in ("completed", "stopped", "nan", "user_error", "bug")}
    assert codes == {"completed": 0, "stopped": 0, "nan": 1, "user_error": 1, "bug": 1}


def test_the_record_is_where_the_launcher_looks(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_exit_record(run, "launch", 3, Outcome("nan", "why"), 12)
    assert json.loads((tmp_path / "exits" / "launch" / "rank-00003.json").read_text()) == {
        "cause": "nan",
        "message": "why",
        "iteration": 12,
    }


def test_a_record_that_cannot_be_written_is_said_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exits").write_text("not a folder")
    write_exit_record(RunDir(tmp_path), "launch", 3, Outcome("disk_full", "why"), 12)
    assert "rank 3: the exit record could not be written" in capsys.readouterr().err


def test_a_rank_that_loses_the_store_of_the_job_says_that_another_was_gone() -> None:
    """By torch's own words, whatever the version: the machine of the first ranks was lost, or they never came."""
    limit = timedelta(milliseconds=10)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=60))
    client.set("here", "")
    with pytest.raises(dist.DistStoreError) as nothing_said:
        client.wait(["missing"], limit)
    del server
    with pytest.raises(dist.DistNetworkError) as gone:
        client.get("here")
    with pytest.raises(dist.DistNetworkError) as not_there:
        dist.TCPStore("127.0.0.1", client.port, is_master=False, timeout=limit)
    for raised in (nothing_said, gone, not_there):
        outcome = outcome_of(raised.value)
        assert outcome.cause == "bug"
        assert outcome.message is not None
        assert lost_a_peer(outcome.message), outcome.message
