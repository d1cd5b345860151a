"""What a job will take on its GPUs: memory of each rank, time of a step, and so the days, GPU-hours and energy."""

from __future__ import annotations

from typing import Any, NamedTuple

from orchestrator.kernel_selection.auto_values import settled
from orchestrator.kernel_selection.layers import PlannedLayers, layers_of, saved_by_torch
from orchestrator.kernel_selection.machine import Estimates, Fit, Machine
from orchestrator.kernel_selection.tensor_overlap import overlaps_tensor_parallel
from orchestrator.planning.blend import evaluations
from orchestrator.planning.estimates import DeviceEstimates, machine_of
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.hardware.planned_device import DeviceChoice, device_of
from orchestrator.planning.layout.balance import BalancedSplit, balanced
from orchestrator.planning.layout.pipeline import Timeline
from orchestrator.planning.memory import Memory, capacity, estimate_memory
from orchestrator.planning.parameters.matrices import matrix_parameters_in_all
from orchestrator.planning.parameters.trainable import trained_in_all
from orchestrator.planning.plan import Plan
from orchestrator.planning.slow_host import slow_host_seconds
from orchestrator.planning.time import StepTime, estimate_time, step_timeline
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES
from orchestrator.spec.sections.runtime import Layers

FORWARD_SHARE = 1 / 3
"""Of a step's time: the forward pass alone, which is what an evaluation does."""


class Forecast(NamedTuple):
    """What a job takes. Bytes and seconds are of one rank, GPU-hours and energy of all."""

    job: JobSpec
    """The job that says what a run would settle for it."""
    choice: DeviceChoice
    """Its GPU, and who said which it is."""
    layers: Layers
    layers_from: str
    """Why these layers are planned for."""
    memory: Memory
    fit: Fit
    time: StepTime
    slow_host_seconds: float | None
    """Of a step where the host is half as fast as planned; None where it was measured, and on the CPU."""
    saved_by_torch: float
    """The share of a step that torch's layers would save, where the host holds up Transformer Engine's."""
    balanced: BalancedSplit | None
    """How else the layers could be dealt out to the stages of a pipeline, where that is faster and fits."""
    training_seconds: float
    """From the first step to the last, evaluations included, queues and restarts not."""
    checkpoint_bytes: int
    """One checkpoint on disk."""

    @property
    def device(self) -> Device:
        """Its GPU."""
        return self.choice.device

    @property
    def tensor_ranks(self) -> int:
        """Ranks of a stage that hold the same amount: the tensor-parallel size."""
        return self.job.parallelism.tensor_model_parallel_size

    @property
    def quantizes(self) -> bool:
        """Whether the layers multiply in FP8 or FP4; the MFU is of the dtype's peak nevertheless."""
        return self.job.precision.quantization is not None

    @property
    def tp_comm_overlap(self) -> bool:
        """Whether tensor parallelism sends while it multiplies, in memory and time."""
        return overlaps_tensor_parallel(self.job, self.layers)

    @property
    def flash_attention(self) -> bool:
        """Whether FlashAttention 4 computes the attention, in time."""
        return self.job.runtime.attention_backend == "flash"

    @property
    def cuda_graphs(self) -> bool:
        """Whether the passes over a micro-batch are a CUDA graph, in memory and time."""
        return self.job.runtime.cuda_graphs is True

    @property
    def gpu_hours(self) -> float:
        return self.training_seconds / 3600 * self.job.world_size

    @property
    def energy_kwh(self) -> float:
        """At the GPUs' full power, without the rest of the machine."""
        return self.gpu_hours * self.device.power_watts / 1000

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `plan --json`: the keys `gpu`, `memory` and `time`."""
        memory, time, device = self.memory, self.time, self.device
        return {
            "gpu": {
                "name": device.name,
                "from": self.choice.how,
                "assumed": self.choice.is_assumed,
                "memory_bytes": device.memory_bytes,
                "peak_flops": dict(device.peak_flops),
                "source": device.source,
            },
            "layers": {"name": self.layers, "from": self.layers_from},
            "memory": {
                "peak_bytes": memory.peak_bytes,
                "device_bytes": memory.device_bytes,
                "gpu_bytes": device.memory_bytes,
                **({"host_bytes": memory.host_bytes} if memory.host_bytes else {}),
                "fit": self.fit,
                "per_rank": [
                    {"tp": tp, **stage._asdict(), "parts": dict(stage.parts)}
                    for stage in memory.stages
                    for tp in range(self.tensor_ranks)
                ],
                "checkpoint_bytes": self.checkpoint_bytes,
            },
            "time": {
                "step_seconds": time.step_seconds,
                "slow_host_step_seconds": self.slow_host_seconds,
                "parts": dict(time.parts),
                "tokens_per_second_per_gpu": time.tokens_per_second_per_gpu,
                "tflops_per_gpu": time.tflops_per_gpu,
                "mfu": time.mfu,
                "in_fp8": self.job.precision.fp8 is not None,
                **({} if self.job.precision.fp4 is None else {"in_fp4": True}),
                "tp_comm_overlap": self.tp_comm_overlap,
                "flash_attention": self.flash_attention,
                "cuda_graphs": self.cuda_graphs,
                "balanced": None
                if self.balanced is None
                else {"set": self.balanced.split.override, "step_seconds": self.balanced.step_seconds},
                "training_seconds": self.training_seconds,
                "gpu_hours": self.gpu_hours,
                "energy_kwh": self.energy_kwh,
            },
        }


class Estimate(NamedTuple):
    """What a job is estimated to need and to take, with all that a run would settle for it."""

    job: JobSpec
    """The job that says all of it."""
    chosen: PlannedLayers
    memory: Memory
    time: StepTime


def estimated(job: JobSpec, padded_vocab: int, device: Device) -> Estimate:
    """The estimate of a job on a device."""
    machine, estimates = machine_of(device), DeviceEstimates(padded_vocab, device)
    chosen = layers_of(job, machine, estimates)
    job = settled(job, chosen.layers, machine, estimates)
    memory = estimate_memory(job, padded_vocab, chosen.layers)
    return Estimate(job, chosen, memory, estimate_time(job, padded_vocab, chosen.layers, device))


def forecast(plan: Plan, cluster: ClusterSpec | None = None) -> Forecast:
    """Forecast a planned job on the GPUs that it names, or else its cluster's, this machine's, or assumed ones."""
    words = plan.vocabulary.padded_size
    choice = device_of(plan.job, cluster)
    machine, estimates = machine_of(choice.device), DeviceEstimates(words, choice.device)
    estimate = estimated(plan.job, words, choice.device)
    job, layers, memory, time = estimate.job, estimate.chosen.layers, estimate.memory, estimate.time
    fit, saved = capacity(memory, choice.device), 0.0
    if layers != "torch":
        known = estimate.chosen.saved_by_torch
        saved = saved_by_torch(plan.job, machine, estimates) if known is None else known
    return Forecast(
        job=job,
        choice=choice,
        layers=layers,
        layers_from=estimate.chosen.why,
        memory=memory,
        fit=fit,
        time=time,
        slow_host_seconds=slow_host_seconds(plan.job, words, choice.device),
        saved_by_torch=saved,
        balanced=_balanced(plan.job, layers, machine, estimates, fit),
        training_seconds=training_seconds(job, plan.batch, time.step_seconds),
        checkpoint_bytes=checkpoint_bytes(job, plan.parameters.total),
    )


def planned_timeline(plan: Plan, taken: Forecast) -> Timeline:
    """When each stage of a planned job does which pass of a step, in the seconds of its forecast."""
    return step_timeline(taken.job, plan.vocabulary.padded_size, taken.layers, taken.device)


def _balanced(job: JobSpec, layers: Layers, machine: Machine, estimates: Estimates, own: Fit) -> BalancedSplit | None:
    """`own`: how the job as it is fits."""

    def fits(job: JobSpec) -> bool:
        return estimates.fit(settled(job, layers, machine, estimates), layers) in (own, "fits")

    def seconds(job: JobSpec) -> float:
        return estimates.step(settled(job, layers, machine, estimates), layers).seconds

    return balanced(job, seconds, fits)


def training_seconds(job: JobSpec, batch: BatchSchedule, step_seconds: float) -> float:
    """Seconds of all steps and evaluations. A smaller batch of the ramp-up takes less, in passes of the pipeline."""
    filling = job.parallelism.pipeline_model_parallel_size - 1
    full = batch.stages[-1].num_micro_batches + filling
    seconds = 0.0
    ends = [*(stage.first_iteration for stage in batch.stages[1:]), batch.train_iters]
    for stage, end in zip(batch.stages, ends, strict=True):
        steps = max(0, min(end, batch.train_iters) - stage.first_iteration)
        seconds += steps * step_seconds * (stage.num_micro_batches + filling) / full
    return seconds + evaluations(job, batch) * job.evaluation.eval_iters * step_seconds * FORWARD_SHARE


_FP32 = DTYPE_BYTES["fp32"]


def checkpoint_bytes(job: JobSpec, parameters: int) -> int:
    """Size of one checkpoint on disk: each weight as it is; and of each trained one the optimizer's state and its fp32
    copy. The distributed optimizer saves that copy of fp32 weights, too. A matrix that Muon orthogonalises has one
    tensor of state less.
    """
    weight, sharded = DTYPE_BYTES[job.precision.dtype], job.parallelism.use_distributed_optimizer
    each = job.optimizer.state_bytes + _FP32 * (weight < _FP32 or sharded)
    state = each * trained_in_all(job, parameters) - _FP32 * matrix_parameters_in_all(job)
    return weight * parameters + state
