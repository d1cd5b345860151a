"""What was measured of a job, beside what its plan says and the least that it could take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from orchestrator.bench.measurement import Measurement
from orchestrator.errors import UserError
from orchestrator.kernel_selection.auto_values import as_started, on_cpu
from orchestrator.planning.hardware import Device, device_named
from orchestrator.planning.memory import Memory, estimate_memory
from orchestrator.planning.time import StepTime, estimate_time
from orchestrator.planning.time.roofline import roofline

IDLE = "idle"
RECOMPUTE = "recompute"

_ROWS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("gemm", "matrix products", ("gemm",)),
    ("attention", "attention", ("attention",)),
    ("memory_bound", "norms, activations, other memory-bound", ("memory_bound",)),
    ("loss", "loss", ("loss",)),
    ("optimizer", "optimizer", ("optimizer",)),
    ("other", "other kernels", ()),
    (
        "communication",
        "communication not hidden",
        ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_transfer", "bubble", "data_parallel"),
    ),
    ("host_copies", "copies to and from the host, not hidden", ("host_copies",)),
    (IDLE, "host gaps, idle", ("overhead", "host")),
    (RECOMPUTE, "recomputation (in the rows above)", (RECOMPUTE,)),
)
"""What is measured, its name for people, and the parts of the plan's step that it stands for."""


class Row(NamedTuple):
    """One part of the step, in seconds."""

    part: str
    name: str
    measured: float | None
    """None where it cannot be told from other parts."""
    predicted: float | None
    """None where the plan has no such part, or does not know the device."""
    roofline: float | None
    """At the least, by what the device's efficiencies say is reached of its datasheet."""

    @property
    def lost(self) -> float:
        """Seconds above the roofline."""
        return (self.measured or 0.0) - (self.roofline or 0.0)


@dataclass(frozen=True)
class Report:
    """A measurement, evaluated."""

    measured: Measurement
    device: Device | None
    """What it was planned and held against; None where it is unknown, and nothing is predicted then."""
    predicted: StepTime | None
    memory: Memory | None
    least: Mapping[str, float]
    """The roofline, by part."""

    @property
    def result(self) -> dict[str, Any]:
        """What the ranks found."""
        return self.measured.result

    @property
    def ranks(self) -> Sequence[Mapping[str, Any]]:
        """What each rank found."""
        ranks: list[Mapping[str, Any]] = self.result["ranks"]
        return ranks

    @property
    def steps(self) -> list[float]:
        """Seconds of each timed step, of its slowest rank."""
        return [max(seconds) for seconds in zip(*(rank["step_seconds"] for rank in self.ranks), strict=True)]

    @property
    def step_seconds(self) -> float:
        """The median."""
        return statistics.median(self.steps)

    @property
    def per_rank(self) -> list[float]:
        """The median of each rank."""
        return [statistics.median(rank["step_seconds"]) for rank in self.ranks]

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return float(self.result["tokens_per_step"]) / self.step_seconds / len(self.ranks)

    @property
    def tflops_per_gpu(self) -> float:
        return self._tflops(self.result["flops_per_step"])

    @property
    def full_tflops_per_gpu(self) -> float | None:
        """With all of attention's scores, where the job asks for Megatron-LM's count; None for any other job."""
        full = self.result.get("full_flops_per_step")
        return None if full is None else self._tflops(full)

    def _tflops(self, flops: float) -> float:
        return flops / self.step_seconds / len(self.ranks) / 1e12

    @property
    def mfu(self) -> float | None:
        """Of the peak of the job's dtype, also where products are in FP8."""
        return self._of_peak(self.tflops_per_gpu)

    @property
    def full_mfu(self) -> float | None:
        """As `full_tflops_per_gpu`."""
        return None if self.full_tflops_per_gpu is None else self._of_peak(self.full_tflops_per_gpu)

    def _of_peak(self, tflops: float) -> float | None:
        peak = self.result["peak_flops"]
        return tflops * 1e12 / peak if peak else None

    @property
    def busiest(self) -> Mapping[str, Any] | None:
        """The rank that computed longest in the profiled step: the one that the others wait for. None where no step
        was profiled.
        """
        profiled = [rank for rank in self.ranks if "profile" in rank]
        return max(profiled, key=lambda rank: float(rank["profile"]["compute_seconds"]), default=None)

    @property
    def profile(self) -> Mapping[str, Any] | None:
        """That of the busiest rank."""
        found: Mapping[str, Any] | None = self.busiest["profile"] if self.busiest else None
        return found

    @property
    def rows(self) -> list[Row]:
        """The profiled step of the busiest rank by part; what is measured adds up to it."""
        profile = self.profile
        if profile is None:
            return []
        seconds = {**profile["parts"], IDLE: profile[IDLE]}
        found = []
        for part, name, planned in _ROWS:
            predicted = sum(self.predicted.parts[each] for each in planned) if self.predicted and planned else None
            least = self.least.get(part, 0.0) if self.least else None
            row = Row(part, name, seconds.get(part), predicted, least)
            if row.measured or row.predicted:
                found.append(row)
        return found

    @property
    def largest_loss(self) -> Row | None:
        """The part that takes most time above its roofline; None where there is no roofline, or no profile."""
        return max(self.rows, key=lambda row: row.lost, default=None) if self.least else None

    def stage_memory(self) -> list[dict[str, int | None]]:
        """Bytes of the fullest rank of each pipeline stage, measured and planned; empty on the CPU."""
        found: list[dict[str, int | None]] = []
        for stage in sorted({int(rank["pp"]) for rank in self.ranks}):
            of_stage = [rank for rank in self.ranks if rank["pp"] == stage]
            if any(rank["peak_bytes"] is None for rank in of_stage):
                return []
            planned = self.memory.stages[stage] if self.memory else None
            found.append(
                {
                    "pp": stage,
                    "peak_bytes": max(rank["peak_bytes"] for rank in of_stage),
                    "predicted_peak_bytes": planned.peak_bytes if planned else None,
                    "used_bytes": max(rank["used_bytes"] for rank in of_stage),
                    "predicted_used_bytes": planned.device_bytes if planned else None,
                }
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """For programs. Seconds, bytes, FLOP."""
        result, request, steps = self.result, self.measured.request, self.steps
        busiest = self.busiest
        return {
            "job": self.measured.job.name,
            "run": str(self.measured.run.path),
            "device": result["device"],
            "ranks_count": len(self.ranks),
            "step": {
                "seconds": self.step_seconds,
                "fastest": min(steps),
                "slowest": max(steps),
                "mean": statistics.fmean(steps),
                "steps": len(steps),
                "warm_up": request.warm_up,
                "fastest_rank": min(self.per_rank),
                "slowest_rank": max(self.per_rank),
            },
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "full_tflops_per_gpu": self.full_tflops_per_gpu,
            "full_mfu": self.full_mfu,
            "peak_flops": result["peak_flops"],
            "peak_dtype": result["dtype"],
            "products": result["products"],
            "expert_products": result.get("expert_products"),
            "flops_per_step": result["flops_per_step"],
            "full_flops_per_step": result.get("full_flops_per_step"),
            "formula": result["formula"],
            "profile": {"rank": busiest["rank"], "step_seconds": busiest["profile"]["seconds"]} if busiest else None,
            "parts": [
                {
                    "part": row.part,
                    "measured_seconds": row.measured,
                    "predicted_seconds": row.predicted,
                    "roofline_seconds": row.roofline,
                }
                for row in self.rows
            ],
            "largest_loss": self.largest_loss.part if self.largest_loss else None,
            "predicted": {
                "device": self.device.name if self.device else None,
                "step_seconds": self.predicted.step_seconds if self.predicted else None,
                "efficiency": asdict(self.device.efficiency) if self.device else None,
            },
            "memory": self.stage_memory(),
            "ranks": list(self.ranks),
            "setup": result["setup"],
        }


def report_of(measured: Measurement) -> Report:
    """Hold a measurement against the plan for the device that it ran on."""
    result = measured.result
    job = as_started(measured.job, measured.choices)
    padded, layers = result["padded_vocab"], result["layers"]
    try:
        device = device_named(result["device"])
    except UserError:  # a GPU that is in no list; calibrating it would add it
        return Report(measured, None, None, estimate_memory(job, padded, layers), {})
    job = on_cpu(job) if device.is_cpu else job
    return Report(
        measured=measured,
        device=device,
        predicted=estimate_time(job, padded, layers, device),
        memory=estimate_memory(job, padded, layers),
        least=roofline(job, padded, device),
    )
