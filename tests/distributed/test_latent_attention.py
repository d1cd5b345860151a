"""Latent attention goes on from a checkpoint at other layouts, and is the same where it is recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.matrix import FAMILIES
from support.trained_together import TrainedTogether, selected
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
    expected = ranks.must_train(make_run(tmp_path, alone), alone, inject=WEIGHTS_ALONE)
    for number, parallelism in enumerate((SP, layout(pp=2), layout(dp=2)), 2):
        job = latent_job("moved", steps=number, parallelism=parallelism)
        run = make_run(tmp_path, job)
        ranks.must_train(run, job, launch_id=str(number))
    assert list(losses(run)) == [1, 2, 3, 4]
    assert largest_difference(losses(expected), losses(run)) < 1e-5
    assert weights_apart(expected, run) == {}


RECOMPUTED: dict[str, tuple[float, dict[str, Any]]] = {
    # the dropout, and what is recomputed
    "core_attn": (0.1, {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}),
    "layernorm": (0.0, {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "layernorm"]}),
    "full": (0.1, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
}


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str | float]:
    """By what is recomputed, and by the dropout where nothing is."""
    recomputed = {name: RECOMPUTED[name] for name in selected(request, "name")}
    sections: dict[str | float, tuple[float, dict[str, Any]]] = {each: (each, {}) for each, _ in recomputed.values()}
    jobs = {
        key: tiny_job(
            "latents",
            model={**FAMILIES["latent"], "attention_dropout": dropout, "hidden_dropout": dropout},
            parallelism=SP,
            runtime=runtime,
            schedule={"train_iters": 2, "lr_warmup_iters": 0},
        )
        for key, (dropout, runtime) in (sections | recomputed).items()
    }
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs, UNSAVED)


@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputed_it_is_the_same_to_the_bit(name: str, trained: TrainedTogether[str | float]) -> None:
    dropout, _ = RECOMPUTED[name]
    assert losses(trained[dropout]) == losses(trained[name])
