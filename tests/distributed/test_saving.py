"""What tests/gpu/test_checkpoint_at_size.py measures with, on small trainings."""

from __future__ import annotations

from pathlib import Path

from support.faults import Ranks
from support.saving import measure_saves
from support.training import events, layout, make_run, tiny_job


def test_saves_are_measured(ranks: Ranks, tmp_path: Path) -> None:
    job = tiny_job(
        "saving",
        model={"num_layers": 4, "hidden_size": 64},
        parallelism=layout(tp=2),
        schedule={"train_iters": 10_000},
        checkpoint={"save_interval": 10_000},
    )
    run = make_run(tmp_path, job)
    quiet, saves = measure_saves(ranks, run, job, {})
    assert 0 < quiet.step < 5
    assert [save.bytes > 1_000_000 for save in saves] == [True, True]
    assert all(save.steps >= 2 and save.seconds > 0 for save in saves)
    [kept] = run.checkpoints.iterdir()
    assert kept == run.checkpoint(events(run, "checkpoint_saved")[-1]["iteration"]), "the first one was removed"
