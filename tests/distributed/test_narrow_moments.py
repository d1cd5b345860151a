"""Adam's moments in bf16: saved so, read at any layout, and brought to another format by a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import UNSAVED, Ranks
from support.trained_together import TrainedTogether, selected
from support.training import layout, losses, tiny_job

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir

NARROW = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
STEPS = 4


def job_of(steps: int = STEPS, optimizer: dict[str, Any] | None = None, **sections: Any) -> Any:
    return tiny_job(
        "narrow",
        model={"activation": "swiglu", "hidden_size": 24},
        batch={"micro_batch_size": 4},
        optimizer={"adam_beta2": 0.9, "lr": 1e-2, **(NARROW if optimizer is None else optimizer)},
        schedule={"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 1},
        **sections,
    )


PLAIN = layout(use_distributed_optimizer=False)


CASES = {
    "bf16-dp2": ("bf16", layout(dp=2)),
    "bf16-plain": ("bf16", PLAIN),
    "fp32": ("fp32", layout()),
    "fp32-plain": ("fp32", PLAIN),
}


def sections_of(case: str) -> dict[str, Any]:
    dtype, parallelism = CASES[case]
    return {"parallelism": parallelism, "precision": {"dtype": dtype}}


@pytest.fixture(scope="module")
def left_alone(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """Each case without a stop, and with wide moments."""
    jobs = {}
    for case in selected(request, "case"):
        jobs |= {case: job_of(**sections_of(case)), f"{case}, wide": job_of(optimizer={}, **sections_of(case))}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("alone"), jobs, UNSAVED)


@pytest.mark.parametrize("case", CASES)
def test_a_resume_is_bitwise(case: str, ranks: Ranks, left_alone: TrainedTogether[str], tmp_path: Path) -> None:
    sections, whole = sections_of(case), losses(left_alone[case])
    run = ranks.continued(tmp_path, job_of(2, **sections), job_of(**sections))
    assert losses(run) == whole
    wide = losses(left_alone[f"{case}, wide"])
    assert wide != whole
    assert wide == pytest.approx(whole, rel=1e-2)


@pytest.fixture(scope="module")
def alone(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return ranks.continued(tmp_path_factory.mktemp("alone"), job_of())


def test_moments_are_stored_in_bf16(alone: RunDir) -> None:
    stored = StoredWeights(committed(alone)[-1].path)
    weight = "decoder.layers.mlp.linear_fc1.weight"
    assert stored.dtype(f"optimizer.state.exp_avg.{weight}") == torch.bfloat16
    assert stored.dtype(f"optimizer.state.exp_avg_sq.{weight}") == torch.bfloat16
    assert stored.dtype(f"optimizer.state.param.{weight}") == torch.float32


def test_other_layouts_and_formats_go_on(ranks: Ranks, tmp_path: Path, alone: RunDir) -> None:
    """From one process to two replicas, to tensor parallelism, and to fp32 in the middle."""
    spread = ranks.continued(tmp_path, job_of(1), job_of(2, parallelism=layout(dp=2)), job_of(parallelism=layout(tp=2)))
    assert losses(spread) == pytest.approx(losses(alone), rel=1e-4)
    for name, parallelism in {"shared": layout(), "plain": layout(use_distributed_optimizer=False)}.items():
        precision = {"dtype": "bf16"}
        given: dict[str, Any] = {"parallelism": parallelism, "precision": precision}
        first = {"exp_avg_sq_dtype": "bf16"}
        run = ranks.continued(tmp_path / name, job_of(1, **given), job_of(2, {}, **given), job_of(4, first, **given))
        kept = ranks.losses_of(job_of(**given), tmp_path / f"{name}-kept")
        assert losses(run) == pytest.approx(kept, rel=1e-2)
        last = StoredWeights(committed(run)[-1].path)
        keys = [key for key in last.keys() if ".exp_avg" in key]  # noqa: SIM118 - no mapping
        kinds = {key.split(".")[2]: last.dtype(key) for key in keys}
        assert kinds == {"exp_avg": torch.float32, "exp_avg_sq": torch.bfloat16}
