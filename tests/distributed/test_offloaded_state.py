"""Optimizer state in the host's memory: the training of the same job without, checkpoints that any job goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import WEIGHTS_ALONE, Ranks
from support.trained_together import TrainedTogether
from support.trained_weights import BITWISE, weights_apart
from support.training import layout, losses, tiny_job

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = pytest.mark.distributed

STEPS = 4
WHERE = {"gpu": 0.0, "half": 0.5, "host": 1.0}
NARROW = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
EXPERTS = {"num_experts": 2, "moe_ffn_hidden_size": 44, "add_bias_linear": False}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "replicas": {"precision": {"dtype": "bf16"}, "parallelism": layout(dp=2)},
    "experts, all narrow": {
        "optimizer": NARROW,
        "precision": {"dtype": "bf16", "grad_reduce_in_fp32": False},
        "model": EXPERTS,
        "parallelism": layout(dp=2, expert_model_parallel_size=2),
    },
    "fp16": {"precision": {"dtype": "fp16", "initial_loss_scale": 1024.0}, "parallelism": layout(tp=2)},
    "fp32": {},
}
COMPARED = (("replicas", "host"), ("experts, all narrow", "half"), ("fp16", "host"), ("fp32", "half"), ("fp32", "host"))
FINE_TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "all weights": {"precision": {"dtype": "bf16"}},
    "adapters": {"precision": {"dtype": "bf16"}, "model": {"lora": {"rank": 4, "alpha": 8}}},
}


def job_of(where: str, steps: int = STEPS, **sections: dict[str, Any]) -> JobSpec:
    return tiny_job(
        "offloaded",
        **{
            **sections,
            "model": {"activation": "swiglu", "hidden_size": 24, **sections.get("model", {})},
            "optimizer": {
                "adam_beta2": 0.9,
                "lr": 1e-2,
                "offload_fraction": WHERE[where],
                **sections.get("optimizer", {}),
            },
            "schedule": {"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 1},
        },
    )


def states(run: RunDir) -> dict[str, bytes]:
    """Every tensor of the optimizer in the last checkpoint."""
    stored = StoredWeights(committed(run)[-1].path)
    keys = [key for key in stored.keys() if key.startswith("optimizer.state.")]  # noqa: SIM118 - no mapping
    return {key: stored.read(key, ()).view(-1).float().numpy().tobytes() for key in keys}


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> TrainedTogether[tuple[str, str]]:
    jobs = {
        (case, where): job_of(where, **CASES[case]) for case, where in COMPARED + tuple((case, "gpu") for case in CASES)
    }
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs)


@pytest.mark.parametrize(("case", "where"), COMPARED)
def test_the_training_is_bitwise_the_same(case: str, where: str, trained: TrainedTogether[tuple[str, str]]) -> None:
    """With clipping, and with a loss scale; experts' state is in an optimizer of its own."""
    plain, run = trained[case, "gpu"], trained[case, where]
    assert losses(run) == losses(plain)
    assert weights_apart(run, plain, BITWISE) == {}
    assert len(states(run)) > 20
    assert states(run) == states(plain)


def test_a_run_goes_on_bitwise_wherever_its_state_is(
    ranks: Ranks, tmp_path: Path, trained: TrainedTogether[tuple[str, str]]
) -> None:
    legs = (job_of(where, steps, **CASES["replicas"]) for steps, where in enumerate(("host", "half", "gpu"), 2))
    run, plain = ranks.continued(tmp_path, *legs), trained["replicas", "gpu"]
    assert losses(run) == losses(plain)
    assert states(run) == states(plain)


def test_other_layouts_go_on(ranks: Ranks, tmp_path: Path, trained: TrainedTogether[tuple[str, str]]) -> None:
    legs = (job_of("host", 2), job_of("half", parallelism=layout(pp=2)))
    assert losses(ranks.continued(tmp_path, *legs)) == pytest.approx(losses(trained["fp32", "gpu"]), rel=1e-4)


def test_weights_that_a_training_starts_from_are_those_that_are_updated(
    ranks: Ranks, tmp_path: Path, trained: TrainedTogether[tuple[str, str]]
) -> None:
    """Without their state: the fp32 copies are of the weights that were read, and not of the random ones."""
    source = {"checkpoint": {"pretrained": str(trained["fp32", "gpu"].path)}}
    places = {"all weights": ("gpu", "host"), "adapters": ("gpu", "half")}
    jobs = {
        (case, where): job_of(where, **FINE_TUNED[case], **source) for case, each in places.items() for where in each
    }
    tuned = TrainedTogether(ranks, tmp_path, jobs, WEIGHTS_ALONE)
    for case, (beside, away) in places.items():
        assert losses(tuned[case, away]) == losses(tuned[case, beside])
        assert weights_apart(tuned[case, away], tuned[case, beside], BITWISE) == {}
