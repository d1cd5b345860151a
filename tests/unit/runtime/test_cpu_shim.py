"""Each patch of the CPU shim is still needed: a job without it fails, or comes out otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Ranks
from support.training import layout, logs, make_run, tiny_job

from orchestrator.runtime import megatron_compat
from orchestrator.runtime.processes import cpu_shim
from tests.unit.runtime.conftest import RunRanks

TESTS = Path(__file__).parents[2]
PATCHES = {
    *(f"torch.{name}" for name in cpu_shim.FACTORIES),
    "torch.cuda.current_device",
    "torch.cuda.get_rng_state",
    "torch.cuda.manual_seed",
    "torch.Tensor.type",
    "megatron.random._get_cuda_rng_state",
    "megatron.random._set_cuda_rng_state",
    "megatron.dispatcher._maybe_dtoh_and_synchronize",
    "megatron.dispatcher.cuda_dtoh_stream",
    *(f"megatron.clip_grads.{name}" for name in ("multi_tensor_applier", "l2_norm_impl")),
}
FROM_0_19 = {"torch.cuda.current_stream"}
"""Needed by megatron-core 0.19 alone."""
BETWEEN_STAGES = {"torch.Tensor.cuda"}
"""Needed where stages share their embeddings, which one process alone does not."""


@pytest.mark.slow("tiny jobs are trained once without each patch, in one process")
def test_each_patch_is_needed(ranks: Ranks) -> None:
    broken: dict[str, str | None] = json.loads(ranks.program(TESTS, "unit.runtime.shim_program"))
    assert set(broken) - FROM_0_19 - BETWEEN_STAGES == PATCHES
    wanted = PATCHES if megatron_compat.VERSION < (0, 19) else PATCHES | FROM_0_19
    assert [patch for patch in wanted if broken[patch] is None] == [], "no longer needed: remove them"


def test_others_in_the_process_still_say_where_tensors_are_made(run_ranks: RunRanks) -> None:
    """transformers, which loads weights into tensors that it made on `meta`, found them made, and left them empty."""
    assert run_ranks("made-on-meta", 1) == [{"in the context": ["meta"], "else": ["cpu"]}]


WITHOUT_CUDA_OF_TENSORS = """
import torch
from orchestrator.runtime.processes import cpu_shim
install, cuda = cpu_shim.install, torch.Tensor.cuda
def install_the_others():
    install()
    torch.Tensor.cuda = cuda
cpu_shim.install = install_the_others
"""


def test_stages_that_share_embeddings_need_theirs(ranks: Ranks, tmp_path: Path, inject: Callable[[str], Path]) -> None:
    job = tiny_job("shared", parallelism=layout(pp=2), schedule={"train_iters": 1, "lr_warmup_iters": 0})
    assert not job.model.untie_embeddings_and_output_weights
    assert {"torch.Tensor.cuda"} == BETWEEN_STAGES
    run = make_run(tmp_path, job)
    assert ranks.start(run, job, inject=inject(WITHOUT_CUDA_OF_TENSORS)).wait() == 1
    assert "setup_embeddings_and_output_layer" in logs(run)


WITHOUT_UNEQUAL_PARTS = """
from megatron.core.tensor_parallel import mappings
from orchestrator.runtime.processes import cpu_shim
patch, original = cpu_shim.patch_megatron_mappings, mappings._gather_along_first_dim
def patch_the_other(module):
    patch(module)
    module._gather_along_first_dim = original
cpu_shim.patch_megatron_mappings = patch_the_other
"""


def test_experts_split_over_ranks_gather_unequal_parts(
    ranks: Ranks, tmp_path: Path, inject: Callable[[str], Path]
) -> None:
    """Each rank has as many tokens as were routed to its experts. With the patch: test_experts.py[tp2-ep2]. The one
    beside it, of the way back, torch before 2.8 alone needs.
    """
    model = {"num_experts": 4, "moe_ffn_hidden_size": 48, "add_bias_linear": False, "activation": "swiglu"}
    degrees = layout(tp=2, dp=2, sequence_parallel=True, expert_model_parallel_size=2)
    job = tiny_job("split", model=model, parallelism=degrees, schedule={"train_iters": 1, "lr_warmup_iters": 0})
    run = make_run(tmp_path, job)
    assert ranks.start(run, job, inject=inject(WITHOUT_UNEQUAL_PARTS)).wait() == 1
    assert "ProcessGroupGloo::allgather: invalid tensor size" in logs(run)


def test_nothing_is_compiled_though_the_compiler_was_imported_before(run_ranks: RunRanks) -> None:
    """Which it is on a machine with a GPU, for a job that is not to use it."""
    assert run_ranks("compiled-before-the-shim", 1) == [[2.0, 0]]
