"""What every part of the model of time needs to know of a job, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from orchestrator.kernel_selection.experts import joins_expert_mlp
from orchestrator.kernel_selection.fused_kernels import rotates_projection
from orchestrator.models.blocks.base import Matrix, RankShape, RoutedTokens
from orchestrator.models.blocks.block import Branch
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.memory.layer_activations import rank_shape
from orchestrator.planning.time.kernels.accesses import Kernels
from orchestrator.planning.time.kernels.gemm import multiplies
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES


@dataclass(frozen=True)
class Setting:
    """A job on a device with a layer backend."""

    job: JobSpec
    model: ModelSpec
    padded_vocab: int
    device: Device
    kernels: Kernels
    dtype: str
    products: str
    """Format of the layers' matrix products: "fp8", "mxfp8", "nvfp4", or the dtype."""
    size: int
    """Bytes of an activation or a weight."""
    gradient_size: int
    """Bytes of a gradient in the buffer that is reduced."""
    tp: int
    sp: bool
    cp: int
    sequences: int
    """Of a micro-batch."""
    tokens: float
    """Of a micro-batch that a rank computes on inside tensor-parallel regions."""
    own_tokens: float
    """Of these, what it computes on between them: its share under sequence parallelism."""
    captured: bool
    """Whether the passes over a micro-batch are a CUDA graph."""
    host_slowness: float = 1.0
    """How many times as long as planned the host takes to start what a layer needs."""

    @cached_property
    def shape(self) -> RankShape:
        """The sizes of a layer's tensors."""
        return rank_shape(self.job)

    def rows(self, matrix: Matrix) -> float:
        """Tokens that a rank multiplies by a matrix: by those of experts each as often as it is routed to one."""
        if matrix.routing is not None:
            return self.own_tokens * matrix.routing.chosen * matrix.routing.kept * self.shape.degrees.etp
        return self.own_tokens if matrix.parallel == "replicated" else self.tokens

    def part(self, matrix: Matrix) -> tuple[float, float]:
        """Inputs and outputs of a matrix on a rank."""
        return matrix.split(self.tp if matrix.routing is None else self.shape.degrees.etp)

    @cached_property
    def joins_experts(self) -> bool:
        """Whether kernels of the runtime's compute experts from the first product to the last."""
        return self.kernels.own_experts and joins_expert_mlp(self.job, self.kernels.layers)

    @cached_property
    def rotates_at_once(self) -> bool:
        """Whether one kernel rotates queries and keys as their projection left them."""
        return self.kernels.projection is not None and rotates_projection(self.job, self.kernels.layers)

    @property
    def expert_products(self) -> str:
        """Format of the products of experts: kernels of the runtime's cast nothing."""
        return self.dtype if self.joins_experts else self.products

    def routed(self, block: Branch) -> RoutedTokens | None:
        """What a block brings to experts."""
        return block.routed(self.model, self.shape)

    @property
    def quantizes(self) -> bool:
        """Whether the operands of the layers' products are cast to a narrower format than the dtype."""
        return self.products != self.dtype

    @property
    def is_frozen(self) -> bool:
        """Whether only adapters are trained, and no matrix, norm or table of the model itself."""
        return self.model.has_adapters

    def streaming(self, count: float) -> float:
        """Seconds of kernels that read and write `count` bytes."""
        return count / (self.device.memory_bandwidth * self.device.efficiency.memory)


def setting_of(job: JobSpec, padded_vocab: int, kernels: Kernels, device: Device) -> Setting:
    """The numbers of a job."""
    model, degrees = job.model, job.parallelism
    tp, cp = degrees.tensor_model_parallel_size, degrees.context_parallel_size
    sp = degrees.uses_sequence_parallel and tp > 1
    tokens = job.micro_batch_sequences * model.sample_length / cp
    size = DTYPE_BYTES[job.precision.dtype]
    return Setting(
        job=job,
        model=model,
        padded_vocab=padded_vocab,
        device=device,
        kernels=kernels,
        dtype=job.precision.dtype,
        products=_products(job, device),
        size=size,
        gradient_size=4 if job.precision.grad_reduce_in_fp32 else size,
        tp=tp,
        sp=sp,
        cp=cp,
        sequences=job.micro_batch_sequences,
        tokens=tokens,
        own_tokens=tokens / tp if sp else tokens,
        captured=job.runtime.cuda_graphs is True,
    )


def _products(job: JobSpec, device: Device) -> str:
    narrow = job.precision.quantization
    return job.precision.products if narrow is None or multiplies(device, narrow.number_format) else job.precision.dtype
