"""Gradients that are summed and averaged in fewer kernels are those of megatron-core: biases and norms are added to
their buffers together, and the average over replicas is part of the loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter
from support.training import layout, tiny_job

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains on real ranks")]

STEPS = 2
BOTH_WAYS = """
from orchestrator.runtime import startup
from orchestrator.runtime.network import model, small_gradients

_wrap, _together, _add = startup.wrap_data_parallel, model.add_together, small_gradients._Waiting._add
_scaling = startup.loss_scaling

def wrap(job, *rest):
    apart = job.name.endswith("apart")
    model.add_together = (lambda chunks: None) if apart else _together
    startup.loss_scaling = (lambda config, chunks, optimizer: optimizer.scale_loss) if apart else scaling
    return _wrap(job, *rest)

def scaling(config, chunks, optimizer):
    found = _scaling(config, chunks, optimizer)
    buffers = [each for chunk in chunks for each in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    print("scaled", {each.gradient_scaling_factor for buffer in buffers for each in buffer.buckets}, flush=True)
    return found

def add(waiting):
    if waiting._gradients:
        print("together", len(waiting._gradients), flush=True)
    _add(waiting)

startup.wrap_data_parallel, small_gradients._Waiting._add = wrap, add
"""
BERT = {"architecture": "bert", "vocab_size": 300, "position_embedding_type": "learned_absolute"}
T5 = {"architecture": "t5", "decoder_seq_length": 16, "vocab_size": 320, "position_embedding_type": "relative"}
EXPERTS = {
    **{"num_experts": 4, "moe_router_topk": 2, "moe_aux_loss_coeff": 0.1, "moe_z_loss_coeff": 0.01},
    **{"mtp_num_layers": 1, "add_bias_linear": False},
}
"""With losses beside that of the next token: they are scaled apart from it."""
FP16 = {"dtype": "fp16", "initial_loss_scale": 1024}
"""Gradients stay as large as they can be until they are summed."""
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt": (18, {}),
    "recomputed": (18, {"runtime": RECOMPUTED}),
    "fp32": (18, {"precision": {"dtype": "fp32"}}),
    "stages": (10, {"parallelism": layout(pp=2)}),
    "replicas": (18, {"parallelism": layout(dp=2, overlap_grad_reduce=False)}),
    "experts": (0, {"model": EXPERTS, "parallelism": layout(dp=2, expert_model_parallel_size=2)}),
    "fp16": (0, {"precision": FP16, "parallelism": layout(dp=2)}),
    "bert": (24, {"model": BERT}),
    "t5": (46, {"model": T5}),
}
"""How many biases and weights of norms the last rank adds together, and sections of a job. A GPT has eight in each of
two layers and two behind them; where each is reduced as soon as it is there, none waits.
"""


def job(case: str, kind: str) -> JobSpec:
    return tiny_job(
        f"{case}-{kind}",
        **{
            "batch": {
                "micro_batch_size": 2,
                "global_batch_size": 4 * CASES[case][1].get("parallelism", {}).get("data_parallel_size", 1),
            },
            "precision": {"dtype": "bf16"},
            "schedule": {"train_iters": STEPS, "lr_warmup_iters": 1},
            **CASES[case][1],
        },
    )


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def trained(ranks: Ranks, scratch: Path) -> dict[str, Measured]:
    """Every case both ways, by the jobs' names: those of one size by the same ranks."""
    (scratch / "inject.py").write_text(BOTH_WAYS)
    meter = Meter(ranks.starter, scratch, inject=scratch / "inject.py", warm_up=1)
    return meter.measure_all(job(case, kind) for case in CASES for kind in ("apart", "together"))


@pytest.mark.parametrize("case", CASES)
def test_the_same_gradients(case: str, trained: dict[str, Measured], scratch: Path) -> None:
    apart, together = (trained[job(case, kind).name] for kind in ("apart", "together"))
    for each in (apart, together):
        assert each.outcome == "measured", each.message
    assert len(set(apart.losses)) == STEPS
    assert together.losses == apart.losses
    assert together.grad_norms == apart.grad_norms
    count, micro_batches, share = CASES[case][0], 2 * STEPS, 0.5 if case == "fp16" else 1.0
    assert said(scratch, job(case, "apart")) == ([], [])
    assert said(scratch, job(case, "together")) == ([count] * micro_batches if count else [], [f"{{{share}}}"])


def said(scratch: Path, of: JobSpec) -> tuple[list[int], list[str]]:
    """How many gradients the last rank added at once, time after time, and what it multiplies sums of them by."""
    [log] = scratch.glob(f"*-{of.name}/run/logs/rank-{of.world_size - 1:05}.log")
    lines = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
    added = [int(words[1]) for words in lines if words[:1] == ["together"]]
    return added, [words[1] for words in lines if words[:1] == ["scaled"]]
