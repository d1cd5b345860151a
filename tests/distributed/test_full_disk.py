"""A disk without room for a checkpoint: training goes on, every rank can say why it ends, and what was saved stays."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faults import Ranks
from support.training import events, layout, logs, losses, make_run, tiny_job

from orchestrator.run_directory.checkpoints.commit_markers import committed, verify

Inject = Callable[[str], Path]

pytestmark = [pytest.mark.distributed, pytest.mark.slow("it trains to the end of a small disk, and again")]

TWO = layout(tp=2)
SIZE = {"num_layers": 4, "hidden_size": 64}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system that holds one checkpoint and not two; None where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)], capture_output=True)
    yield folder if mounted.returncode == 0 else None
    if mounted.returncode == 0:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk(small_disk: Path | None, ranks: Ranks, inject: Inject, tmp_path: Path) -> None:
    """Training goes on without the checkpoint; only the last one must succeed. Earlier ones are as they were."""
    job = tiny_job("full", model=SIZE, parallelism=TWO, checkpoint={"save_interval": 2})
    run = make_run(small_disk or tmp_path, job)
    # Where the disk is full, no rank may go on before there is room again: its exit record would find none.
    code = ranks.start(
        run, job, inject=inject(SLOW_TO_REMOVE if small_disk else _limited_after_first_save(3 << 20))
    ).wait()
    told = [(event["event"], event["iteration"]) for event in events(run, "checkpoint_saved")]
    assert told == [("checkpoint_saved", 2)], logs(run)
    failures = events(run, "checkpoint_failed")
    assert [event["iteration"] for event in failures] == [4, 6, 8]
    reason = "No space left on device" if small_disk else "File too large"
    assert all(reason in event["message"] for event in failures), failures
    assert list(losses(run)) == list(range(1, 9)), "no measurement is lost"
    assert verify(run.checkpoint(2)) == []
    assert [path.name for path in run.checkpoints.iterdir()] == ["iter_0000002"]
    assert code == 1
    for rank in (0, 1):
        record = json.loads(run.exit_record("test", rank).read_bytes())
        assert record["cause"] == "disk_full"
        assert f"the checkpoint of iteration 8 could not be written: {reason}" in record["message"]

    if small_disk:
        subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    ranks.must_train(run, job, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [2]
    assert committed(run)[-1].iteration == 8


SLOW_TO_REMOVE = """
import shutil, time
remove = shutil.rmtree
def rmtree(*arguments, **options):
    time.sleep(0.3)
    remove(*arguments, **options)
shutil.rmtree = rmtree
"""


def _limited_after_first_save(limit: int) -> str:
    """Files may not grow beyond `limit` bytes once a checkpoint is committed: what a user who cannot mount can have."""
    return f"""
import resource
from orchestrator.runtime.callbacks import saving
begin = saving.CheckpointSaving._save
def save(self, session, *, wait):
    if session.state.iteration > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit // 12}, {resource.RLIM_INFINITY}))
    return begin(self, session, wait=wait)
saving.CheckpointSaving._save = save
"""
