"""A run held against its plan: what was forecast of the spec that it runs, and what it measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from orchestrator.cluster_profiles import load_profile
from orchestrator.errors import UserError
from orchestrator.kernel_selection.auto_values import as_started
from orchestrator.planning.forecast import Forecast, forecast, planned_timeline
from orchestrator.planning.hardware.devices import CPU, computing_unit, device_named
from orchestrator.planning.layout.pipeline import Timeline
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.profile_files import profile_file
from orchestrator.review.charts.curves import Reference
from orchestrator.review.charts.series import Series, usual_of
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import CheckpointSaved, Started
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

Unit = Literal["seconds", "memory", "disk", "share", "count"]

_KEPT_PLANS = 8
_MOST_PASSES = 20_000
"""A step of more passes is not drawn: it would take seconds."""


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run. `device_from`: who said which GPU it is."""

    plan: Plan
    forecast: Forecast
    device_from: str

    @property
    def is_assumed(self) -> bool:
        """Whether nothing told which GPU it is, so that times and memory may be of another."""
        return self.forecast.choice.is_assumed


@dataclass(frozen=True)
class Row:
    """A figure as planned and as measured; None where it is not known."""

    name: str
    planned: float | None
    measured: float | None
    unit: Unit

    @property
    def ratio(self) -> float | None:
        """Measured by planned."""
        if self.planned is None or self.measured is None or self.planned == 0:
            return None
        return self.measured / self.planned


def planned_of(run: RunDir) -> RunPlan:
    """The plan of a run's newest spec on the device that it started on, else the one that the spec or its cluster
    names. Plans of the runs that were asked for last are kept. Raises UserError where none can be made.
    """
    started = run.events().last(Started)
    chosen = started.choices if started else {}
    if started and chosen["cuda_graphs"] is None:
        chosen["cuda_graphs"] = False  # before there were graphs nothing was said
    return _planned(run.resolved(), _version(run.resolved()), tuple(chosen.items()))


def rows_of(planned: RunPlan, series: Series, events: EventLog) -> list[Row]:
    """The table of planned and measured."""
    plan, taken = planned.plan, planned.forecast
    started, saved = events.last(Started), events.last(CheckpointSaved)
    step = usual_of(series, "throughput/step_seconds")
    peaks = series.measured("memory/peak_bytes")
    return [
        Row("seconds per step", taken.time.step_seconds, step, "seconds"),
        Row(
            "total tokens per second",
            taken.time.tokens_per_second_per_gpu * plan.job.world_size,
            usual_of(series, "throughput/tokens_per_second"),
            "count",
        ),
        Row(
            f"TFLOP/s per {computing_unit(taken.device.name)}",
            taken.time.tflops_per_gpu,
            usual_of(series, "throughput/tflops_per_gpu"),
            "count",
        ),
        Row("MFU", taken.time.mfu, usual_of(series, "throughput/mfu"), "share"),
        Row("peak memory of a rank", taken.memory.peak_bytes, max(peaks.values) if peaks else None, "memory"),
        Row(
            "all steps",
            taken.training_seconds,
            None if step is None else step * plan.batch.train_iters,
            "seconds",
        ),
        Row("parameters of rank 0", _of_rank_0(plan), started.parameters if started else None, "count"),
        Row("a checkpoint", taken.checkpoint_bytes, saved.bytes if saved else None, "disk"),
    ]


def _of_rank_0(plan: Plan) -> float | None:
    held = (each.parameters for each in plan.parameters.per_rank if each.tp == each.pp == 0)
    return next(held, None)


def references_of(chart: str, run: RunDir) -> list[Reference]:
    """What the plan says where a chart has a line for it. The figures of CPUs are nominal, and none is drawn."""
    if chart not in ("speed", "tflops", "mfu", "step_time", "memory"):
        return []
    planned = planned_of(run)
    taken, assumed = planned.forecast, " (assumed GPU)" if planned.is_assumed else ""
    device, text = taken.device, f"plan{assumed}"
    if device.is_cpu:
        return []
    world_size = planned.plan.job.world_size
    found = {
        "speed": [Reference(text, taken.time.tokens_per_second_per_gpu * world_size)],
        "tflops": [Reference(text, taken.time.tflops_per_gpu)],
        "mfu": [Reference(text, taken.time.mfu)] if taken.time.mfu is not None else [],
        "step_time": [Reference(text, taken.time.step_seconds)],
        "memory": [Reference(text, float(taken.memory.peak_bytes))],
    }
    if device.memory_bytes is not None:
        found["memory"].append(Reference(device.name, float(device.memory_bytes)))
    return found[chart]


def timeline_of(planned: RunPlan) -> Timeline | None:
    """When each stage does which pass of a step; None where it has too many to be drawn."""
    job = planned.plan.job
    chunks = job.parallelism.num_model_chunks
    passes = 2 * job.num_micro_batches * chunks * job.parallelism.pipeline_model_parallel_size
    if passes > _MOST_PASSES:
        return None
    return planned_timeline(planned.plan, planned.forecast)


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=_KEPT_PLANS)
def _planned(path: Path, version: tuple[int, int], choices: tuple[tuple[str, Any], ...]) -> RunPlan:
    """The plan of a spec; `version` changes with the file. `choices`: what its last start said, by name."""
    chosen = dict(choices)
    job = load_resolved(path)
    cluster = job.launch.cluster
    profile = load_profile(cluster) if cluster is not None and profile_file(cluster) is not None else None
    job, said = _on(as_started(job, chosen), str(chosen.get("device")), str(chosen.get("layers")))
    plan = make_plan(job)
    taken = forecast(plan, profile)
    return RunPlan(plan, taken, said or taken.choice.how)


def _on(job: JobSpec, device: str, layers: str) -> tuple[JobSpec, str | None]:
    """A job on the device and with the layers that it started with, where these are known."""
    runtime: dict[str, Any] = {"layers": layers} if layers in ("torch", "transformer_engine") else {}
    if device.casefold() == CPU.casefold():
        return job.changed(launch={"gpu": None}, runtime={**runtime, "device": "cpu"}), "it trained there"
    job = job.changed(runtime=runtime)
    try:
        name = device_named(device).name
    except UserError:
        return job, None
    return job.changed(launch={"gpu": name}), "it trained there"
