"""What one rank allocates while the real runtime trains, counted on the CPU with CUDA's behaviour.

Reads JSON cases on standard input ({"job": a full JobSpec, "padded_vocab": V, "rank": r, "what": "layer" or "step"}).
Prints, in bytes, for each "layer" what a layer keeps for its backward pass, and for each "step" what was held at most
while the network and the optimizer were made, in the passes of the second step, and in its update. A program of its
own: it changes torch for the whole process.

The ranks beside it are torch's fake process group: collectives return at once, with whatever is in their buffers. Where
the CPU's kernels allocate otherwise than CUDA's, stand-ins that only allocate take their place: norms, attention,
dropout, and the functions that are compiled on a GPU.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchestrator import plain_megatron  # before anything that imports megatron-core
from orchestrator.runtime.processes.device import Device, select_device
from orchestrator.runtime.steps.base import Batch
from orchestrator.runtime.steps.gpt import NextToken

CUDA = Device("cuda", torch.device("cpu"), "nccl", "stand-in")
"""Has the settings of a GPU, and tensors on the CPU."""

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
"""Of matrices. Only their sizes matter here, and a CPU computes those of 16 bits slowly."""
DRAWS = torch.ops.aten.normal_.default
"""Random weights, of which no more than their sizes matter either."""


class Allocations(TorchDispatchMode):
    """Counts the bytes of all storages that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0
        self._paused = False
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._sizes: dict[int, int] = {}
        self._elsewhere: dict[int, Any] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in PRODUCTS:
            result = args[0].new_zeros(*args[0].shape[:-1], args[1].size(-1))
        elif function is DRAWS:
            result = args[0].zero_()
        else:
            result = function(*args, **(kwargs or {}))
        if not self._paused:
            self.count(result)
        return result

    def count(self, result: Any) -> None:
        """Count the storages of tensors from now until they die."""
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._elsewhere:
            return
        if key in self._alive or size < 16:  # scalars: on CUDA some of them stay on the host
            return

        def died(reference: Any) -> None:
            del self._alive[key]
            self.held -= self._sizes.pop(key)

        self._alive[key], self._sizes[key] = weakref.ref(storage, died), size
        self.held += size
        self.most = max(self.most, self.held)

    def resized(self, storage: Any, size: int) -> None:
        """A storage is given back while its tensor lives, or taken anew: what is recomputed in place."""
        if storage._cdata in self._alive:
            self.held += size - self._sizes[storage._cdata]
            self.most = max(self.most, self.held)
            self._sizes[storage._cdata] = size

    def uncounted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; what it allocates does not count."""

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._paused = self._paused, True
            try:
                return function(*args, **kwargs)
            finally:
                self._paused = before

        return run

    def elsewhere(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; the memory that it returns a tensor of never counts."""

        def run(*args: Any, **kwargs: Any) -> Any:
            result = self.uncounted(function)(*args, **kwargs)
            storage = result.untyped_storage()
            self._elsewhere[storage._cdata] = storage
            return result

        return run

    def take_most(self) -> int:
        """The most since the last call."""
        gc.collect()
        most, self.most = self.most, self.held
        return most


plain_megatron.leave_alone_from_the_start(Allocations)
ALLOCATIONS = Allocations()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a kernel of one pass, or torch's compiler, runs it: only the results take memory."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = ALLOCATIONS.uncounted(function)(*args, **kwargs)
        ALLOCATIONS.count(result)
        return result

    return run


class CudaNorm(torch.autograd.Function):
    """layer_norm and rms_norm save their input and fp32 statistics per row."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, of_a_row: int) -> Any:
        statistics = torch.zeros(of_a_row * x.numel() // x.size(-1))
        ctx.save_for_backward(x, weight, statistics)
        ctx.has_bias = bias is not None
        return torch.zeros(x.shape, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        for_bias = torch.zeros_like(weight) if ctx.has_bias else None
        for_weight = None if weight is None else torch.zeros_like(weight)
        return torch.zeros(x.shape, dtype=x.dtype), for_weight, for_bias, None


class CudaAttention(torch.autograd.Function):
    """scaled_dot_product_attention saves its inputs, its output in the query's layout, and the fp32 log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        out = torch.zeros_like(q)
        ctx.save_for_backward(q, k, v, out, torch.zeros(q.shape[:3]))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return tuple(torch.zeros_like(saved) for saved in ctx.saved_tensors[:3])


class CudaDropout(torch.autograd.Function):
    """Dropout saves a mask of one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(torch.zeros(x.shape, dtype=torch.bool))
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.zeros_like(grad)


class CudaRotation:
    """`kernels.rotation`: it rotates in place, or into tensors of its own."""

    @staticmethod
    def rotate(joined: Any, frequencies: Any, *, back: bool = False) -> None:
        assert joined.is_contiguous()

    @staticmethod
    def split(joined: Any, frequencies: Any) -> Any:
        s, b, groups, members, d = joined.shape
        return tuple(
            torch.zeros(s, b, heads, d, dtype=joined.dtype) for heads in (groups * (members - 2), groups, groups)
        )

    @staticmethod
    def join(query: Any, key: Any, value: Any, frequencies: Any) -> Any:
        s, b, heads, d = query.shape
        return torch.zeros(s, b, key.size(2), heads // key.size(2) + 2, d, dtype=query.dtype)


class CudaGate:
    """`kernels.gated_linear_unit`."""

    @staticmethod
    def gated(x: Any, gate: str) -> Any:
        assert x.is_contiguous()
        return torch.zeros(x.size(0), x.size(1) // 2, dtype=x.dtype)

    @staticmethod
    def gated_gradient(gradient: Any, x: Any, gate: str) -> Any:
        assert gradient.is_contiguous()
        return torch.zeros_like(x)


def behave_like_cuda() -> None:
    """Put the stand-ins in place."""
    from megatron.core import parallel_state
    from megatron.core.fusions import fused_bias_swiglu
    from megatron.core.tensor_parallel import layers as linears
    from megatron.core.tensor_parallel import random

    from orchestrator.runtime.cross_entropy import rows
    from orchestrator.runtime.layers import gated_linear_unit
    from orchestrator.runtime.layers.attention import rotation
    from orchestrator.runtime.optimizers import state_blocks

    any_blocks: Any = state_blocks
    any_blocks.host_zeros = ALLOCATIONS.elsewhere(state_blocks.host_zeros)
    any_rotation: Any = rotation
    any_rotation._kernels = CudaRotation
    any_gated: Any = gated_linear_unit
    any_gated._kernels = lambda: CudaGate
    any_functional: Any = functional
    any_functional.layer_norm = lambda x, shape, weight, bias, eps: CudaNorm.apply(x, weight, bias, 2)
    any_functional.rms_norm = lambda x, shape, weight, eps: CudaNorm.apply(x, weight, None, 1)
    any_functional.scaled_dot_product_attention = lambda q, k, v, **options: CudaAttention.apply(q, k, v)
    any_functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        CudaDropout.apply(x) if p > 0 and training else x
    )
    # The exact GeLU of 16 bits takes what lies side by side (`runtime.layers.gelu`).
    gelu, copied = functional.gelu, (torch.bfloat16, torch.float16)
    any_functional.gelu = lambda x, approximate="none": gelu(
        x.contiguous() if approximate == "none" and x.dtype in copied else x, approximate=approximate
    )
    for name in ("swiglu", "bias_swiglu", "swiglu_back", "bias_swiglu_back"):
        setattr(fused_bias_swiglu, name, compiled(getattr(fused_bias_swiglu, name)))
    for name in ("statistics", "turn_into_gradient"):
        setattr(rows, name, compiled(getattr(rows, name)))
    for name in ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"):  # a product that adds takes nothing
        setattr(linears.fused_weight_gradient_mlp_cuda, name, lambda *matrices: None)
    # These lie on the host where CUDA computes.
    for name in ("_get_all_rng_states", "_set_all_rng_states"):
        setattr(random, name, ALLOCATIONS.uncounted(getattr(random, name)))
    for name in ("get_data_parallel_group_gloo", "get_expert_data_parallel_group_gloo"):
        setattr(parallel_state, name, lambda *args, **kwargs: None)
    storage: Any = torch.UntypedStorage
    resize = storage.resize_

    def counted_resize(self: Any, size: int) -> Any:
        ALLOCATIONS.resized(self, size)
        return resize(self, size)

    storage.resize_ = counted_resize
    any_cuda: Any = torch.cuda
    any_cuda.synchronize = lambda *args: None


@contextlib.contextmanager
def groups(job: Any, rank: int) -> Iterator[Any]:
    """The job's process groups, with nobody else in them. Yields this process's Ranks."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    from orchestrator.planning.layout.topology import rank_of
    from orchestrator.runtime.processes.process_groups import Ranks

    degrees = job.parallelism
    tp, pp = degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size
    dist.init_process_group("fake", rank=rank, world_size=job.world_size, store=FakeStore())
    parallel_state.initialize_model_parallel(
        tp,
        pp,
        degrees.virtual_pipeline_model_parallel_size,
        num_distributed_optimizer_instances=job.sharded_copies,
        create_gloo_process_groups=False,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    at, dp = rank_of(job, rank), job.data_parallel_size
    yield Ranks(rank, job.world_size, at.tp, tp, at.pp, pp, at.dp, dp, degrees.num_model_chunks)
    RotaryEmbedding.forward.cache_clear()  # it would keep angles of this network, and drop them during a later case
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def batches(job: Any) -> Iterator[Batch]:
    """Micro-batches as the loader hands them over."""
    shape = (job.batch.micro_batch_size, job.model.seq_length)
    for _ in itertools.count():
        tokens, labels, positions = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
        yield {"tokens": tokens, "labels": labels, "loss_mask": torch.ones(shape), "position_ids": positions}


def network(job: Any, padded_vocab: int, ranks: Any) -> tuple[Any, list[Any]]:
    """megatron-core's configuration and this rank's chunks."""
    from orchestrator.planning.vocabulary import Vocabulary
    from orchestrator.runtime.network.model import build_chunks, transformer_config

    config = transformer_config(job, CUDA, "torch")
    words = Vocabulary(padded_vocab, padded_vocab, None)
    return config, build_chunks(job, config, CUDA, "torch", words, ranks)


def kept_by_forward(job: Any, padded_vocab: int, rank: int) -> int:
    """Bytes between a forward and its backward pass beyond the weights."""
    from orchestrator.runtime.layers.attention.scores import causal_mask

    causal_mask.cache_clear()  # masks are for all layers and passes, and no layer's
    with groups(job, rank) as ranks:
        _, [chunk] = network(job, padded_vocab, ranks)
        batch = next(batches(job))
        with ALLOCATIONS:
            ALLOCATIONS.count(list(chunk.parameters()))
            gc.collect()
            before = ALLOCATIONS.held
            loss = NextToken().forward(chunk, batch)
            gc.collect()
            kept = ALLOCATIONS.held - before
            del loss
    return kept


def kept_by_layer(job: Any, padded_vocab: int, rank: int) -> dict[str, int]:
    """What the second layer adds to that."""
    one, two = (job.model_copy(update={"model": job.model.model_copy(update={"num_layers": n})}) for n in (1, 2))
    return {"layer": kept_by_forward(two, padded_vocab, rank) - kept_by_forward(one, padded_vocab, rank)}


def most_in_step(job: Any, padded_vocab: int, rank: int) -> dict[str, int]:
    """Build, and take two steps."""
    from orchestrator.planning.training_schedule.hyperparameters import Hyperparameters
    from orchestrator.runtime.forward_backward import run_micro_batches
    from orchestrator.runtime.network.model import wrap_data_parallel
    from orchestrator.runtime.optimizer_step import build_optimizer, update

    found = {}
    with groups(job, rank) as ranks, ALLOCATIONS:
        ALLOCATIONS.take_most()
        start = ALLOCATIONS.held
        config, modules = network(job, padded_vocab, ranks)
        chunks = wrap_data_parallel(job, config, modules)
        optimizer = build_optimizer(job, chunks)
        config.grad_scale_func = optimizer.scale_loss
        found["start"] = ALLOCATIONS.take_most() - start
        for _ in range(2):
            for chunk in chunks:
                chunk.zero_grad_buffer()
            optimizer.zero_grad()
            ALLOCATIONS.take_most()
            run_micro_batches(
                NextToken(),
                chunks,
                [batches(job) for _ in chunks],
                num_micro_batches=job.num_micro_batches,
                micro_batch_size=job.batch.micro_batch_size,
                seq_length=job.model.seq_length,
                forward_only=False,
            )
            found["passes"] = ALLOCATIONS.take_most() - start
            update(optimizer, Hyperparameters(1e-3, 1e-3, 0.01), job)
            found["update"] = ALLOCATIONS.take_most() - start
    return found


def answer(case: dict[str, Any]) -> dict[str, int]:
    """One case."""
    from orchestrator.spec.job import STORED, JobSpec

    job = JobSpec.model_validate(case["job"], context={STORED: True})
    count = kept_by_layer if case["what"] == "layer" else most_in_step
    return count(job, case["padded_vocab"], case["rank"])


def main() -> None:
    """Answer all cases."""
    from orchestrator.runtime import megatron_compat

    torch.set_num_threads(1)
    megatron_compat.apply(select_device("cpu"))
    behave_like_cuda()
    gc.disable()  # it is collected where memory is counted
    found = []
    for case in json.load(sys.stdin):
        found.append(answer(case))
        gc.collect()
        gc.freeze()  # what was imported and is kept: each of the many collections would walk through it
    print(json.dumps(found))


if __name__ == "__main__":
    main()
