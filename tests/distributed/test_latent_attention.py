"""Latent attention goes on from a checkpoint at other layouts, and is the same where it is recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import UNSAVED, Ranks
from support.matrix import FAMILIES
from support.trained_together import TrainedTogether
from support.trained_weights import weights_apart
from support.training import largest_difference, layout, losses, make_run, tiny_job

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each run trains on real ranks")]

SP = layout(tp=2, sequence_parallel=True)


def latent_job(name: str, steps: int = 4, **sections: Any) -> JobSpec:
    """Steps of a schedule of four."""
    schedule = {"train_iters": steps, "lr_decay_iters": 4, "lr_warmup_iters": 0}
    return tiny_job(name, model=FAMILIES["latent"], schedule=schedule, **sections)


def test_a_checkpoint_goes_on_at_other_layouts(ranks: Ranks, tmp_path: Path) -> None:
    alone = latent_job("alone")
    expected = ranks.must_train(make_run(tmp_path, alone), alone)
    for number, parallelism in enumerate((layout(tp=2), SP, layout(pp=2), layout(dp=2)), 1):
        job = latent_job("moved", steps=number, parallelism=parallelism)
        run = make_run(tmp_path, job)
        ranks.must_train(run, job, launch_id=str(number))
    assert list(losses(run)) == [1, 2, 3, 4]
    assert largest_difference(losses(expected), losses(run)) < 1e-5
    assert weights_apart(expected, run) == {}


@pytest.mark.parametrize(("modules", "dropout"), [(["core_attn"], 0.1), (["core_attn", "layernorm"], 0.0), (None, 0.1)])
def test_recomputed_it_is_the_same_to_the_bit(
    modules: list[str] | None, dropout: float, ranks: Ranks, tmp_path: Path
) -> None:
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    runtime = full if modules is None else {"recompute_granularity": "selective", "recompute_modules": modules}
    dropping = {**FAMILIES["latent"], "attention_dropout": dropout, "hidden_dropout": dropout}
    kept, again = (
        tiny_job(name, model=dropping, parallelism=SP, runtime=more, schedule={"train_iters": 2, "lr_warmup_iters": 0})
        for name, more in (("kept", {}), ("again", runtime))
    )
    trained = TrainedTogether(ranks, tmp_path, {"kept": kept, "again": again}, UNSAVED)
    assert losses(trained["kept"]) == losses(trained["again"])
