"""Transformer Engine's user buffers: what tensor parallelism sends moves in pieces while matrices are multiplied.

Only imported where Transformer Engine is installed. Which collective goes how is what was the fastest of six ways for
7.1 billion parameters on two H200s (docs/benchmarks, 2026-11-23).
"""

from __future__ import annotations

import os

import torch
from transformer_engine.pytorch import UserBufferQuantizationMode, destroy_ub, initialize_ub

from orchestrator.spec.job import JobSpec

_SUMS = ("proj_fprop", "fc2_fprop", "qkv_dgrad", "fc1_dgrad")
"""Products whose outputs are summed over the ranks, as Transformer Engine calls them. What is gathered before a product
goes in a ring by itself.
"""
_FOREVER = 10**9
"""Seconds; Transformer Engine's own limit is 110."""
_RING = {
    **{"method": "ring_exchange", "is_reduce_scatter": True, "num_splits": 1, "set_sm_margin": False},
    **{"num_sm": 1, "cga_size": 1},  # of those kernels alone that wait for a piece: copy engines move it
}


def open_buffers(job: JobSpec) -> str | None:
    """Take and exchange the buffers; what stands in the way, if they cannot be had. All ranks call it, before any layer
    is built; a micro-batch fits exactly.
    """
    # Without NVLink's multicast, which virtual machines may report and not have.
    os.environ.setdefault("UB_SKIPMC", "1")
    # A kernel that has waited for a peer this long goes on with what it has: wrong results. `hang_timeout` ends a hang.
    os.environ.setdefault("UB_TIMEOUT", str(_FOREVER))
    degrees, model = job.parallelism, job.model
    tokens = model.seq_length * job.batch.micro_batch_size // degrees.context_parallel_size
    modes = UserBufferQuantizationMode
    try:
        initialize_ub(
            [tokens, model.hidden_size],
            degrees.tensor_model_parallel_size,
            quantization_modes=[modes.NONE if job.precision.fp8 is None else modes.FP8],
            ub_cfgs={product: dict(_RING) for product in _SUMS},
            bootstrap_backend="nccl",
        )
    except (RuntimeError, AssertionError) as error:  # its words for what CUDA refuses, as containers that share nothing
        return f"its buffers could not be opened: {str(error).strip().splitlines()[-1]}"
    return None


def close_buffers() -> None:
    """Give them back, after all that was computed with them."""
    torch.cuda.synchronize()
    destroy_ub()
