"""A start that stops after a given step: the trial of a search that is promoted is the run that never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults import UNSAVED, Ranks
from support.training import events, layout, logs, losses, make_run, tiny_job, values

from orchestrator.launch.processes.stop_request import asked_to_stay
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import STOP_AT_VARIABLE

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.slow("trains under real ranks"),
]


def test_a_run_that_stops_at_each_rung_is_bitwise_the_one_that_never_does(ranks: Ranks, tmp_path: Path) -> None:
    job = tiny_job(
        "rungs",
        model={"hidden_dropout": 0.1, "attention_dropout": 0.1},
        data={"split": "90,10,0"},
        batch={"micro_batch_size": 2},
        parallelism=layout(dp=2),
        schedule={"train_iters": 8, "lr_warmup_iters": 2, "lr_decay_style": "cosine"},
        evaluation={"eval_interval": 2, "eval_iters": 1},
    )
    undisturbed = ranks.must_train(make_run(tmp_path / "undisturbed", job), job, inject=UNSAVED)
    run = make_run(tmp_path / "stopped", job)
    for rung in (2, 4):
        started = ranks.start(run, job, env={STOP_AT_VARIABLE: str(rung)})
        assert started.wait() == 0, logs(run)
        assert [commit.iteration for commit in committed(run)][-1] == rung
        assert events(run, "stop_requested")[-1]["by"] == f"the limit of this start, step {rung}"
        assert asked_to_stay(run) is not None, "no scheduler starts it again by itself"
    run.stop_file.unlink()  # as the launcher does
    ranks.must_train(run, job)
    assert losses(run) == losses(undisturbed)
    assert values(run, "train/lr") == values(undisturbed, "train/lr") != {}
    assert values(run, "validation/loss") == values(undisturbed, "validation/loss")
    assert sorted(values(run, "validation/loss")) == [2, 4, 6, 8]
