"""What stops a job, what it warns of, and what is fine: one page before a GPU is held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.data.tasks.checks import task_problems
from orchestrator.errors import Problem
from orchestrator.kernel_selection.cuda_connections import CONNECTIONS, device_connections
from orchestrator.models.blocks.experts.upcycling import granularity
from orchestrator.planning.checks.checkpoint_room import room_for_checkpoints
from orchestrator.planning.checks.device_support import unsupported_formats
from orchestrator.planning.checks.host_memory import beyond_host_memory
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.planning.checks.preflight_checks import (
    cache_is_unwritable,
    kernels_are_missing,
    modules_are_hidden,
    nobody_can_be_told,
    python_is_missing,
    runs_dir_of,
    trackers_are_missing,
    train_step_is_missing,
    transformer_engine_is_missing,
    variables_are_unset,
)
from orchestrator.planning.checks.unusual_values import unusual_values
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.hardware.local_gpus import gpus_counted
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.bubble import pipeline_idles
from orchestrator.planning.time.communication import linked_ranks
from orchestrator.quantities import memory_size, spec_duration, time_span
from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

LARGE_COMMUNICATION = 0.25
"""Share of a step that may go to communication that nothing hides."""
LARGE_COPIES = 0.1
"""Share of a step that may wait for copies to the host's memory."""
LONG_LOSS = 4 * 3600
"""Seconds of work that a crash may cost before it is worth a word."""
SHORT_TRY = 15 * 60
"""Seconds of a training that needs no checkpoint before its end, whatever the interval that it was given with."""


_LAYOUT = ("parallelism.tensor_model_parallel_size", "launch.gpus_per_node", "launch.nodes")
_MEMORY = ("batch.micro_batch_size", "runtime.recompute_granularity", *_LAYOUT)
_SAVING = ("checkpoint.save_interval", "checkpoint.save_seconds")
_DATA = ("data.blend",)


class Verdict(NamedTuple):
    """Everything that can be told in advance. A stop is what cannot work, a warning what a person should look at."""

    stops: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    fine: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `plan --json`."""
        return {
            "stops": [each.to_dict() for each in self.stops],
            "warnings": [each.to_dict() for each in self.warnings],
            "fine": list(self.fine),
        }


def judge(
    plan: Plan,
    forecast: Forecast,
    cluster: ClusterSpec | None,
    stops: Iterable[Problem] = (),
    runs_dir: Path | None = None,
    saved: Sequence[Commit] = (),
) -> Verdict:
    """The verdict on a job. `stops`: what was found against it elsewhere, in its cluster's limits and its data;
    `runs_dir`: where its runs go, if not where it says; `saved`: the checkpoints of the run that it continues.
    """
    found = list(stops)
    told = {(each.code, each.paths) for each in found}
    warnings = [
        *_coded((code, check(plan, forecast, cluster)) for code, check in WARNINGS.items()),
        *room_for_checkpoints(plan, forecast, cluster, runs_dir, sum(each.bytes for each in saved)),
        *(_weights_to_start_from(plan, runs_dir) if not saved else ()),
    ]
    return Verdict(
        stops=(
            *found,
            *(Problem(text, _DATA, code="data") for text in plan.blend.stops),
            *unsupported_formats(plan.job, forecast),
            *_does_not_fit(plan, forecast, cluster),
        ),
        warnings=tuple(each for each in warnings if (each.code, each.paths) not in told),
        fine=tuple(_fine(plan, forecast, cluster)),
    )


def _coded(found: Iterable[tuple[str, Iterable[Problem]]]) -> Iterator[Problem]:
    """Each warning with its code: its own, or that of the check."""
    for code, problems in found:
        for each in problems:
            yield replace(each, code=each.code or code)


def too_large(forecast: Forecast, cluster: ClusterSpec | None = None) -> list[Problem]:
    """That a job does not fit into the memory of its GPUs, or of their hosts, where it is known which they are."""
    return [*_beyond_gpu_memory(forecast), *beyond_host_memory(forecast.job, forecast.memory, cluster)]


def _beyond_gpu_memory(forecast: Forecast) -> list[Problem]:
    if forecast.fit != "does not fit" or forecast.choice.is_assumed:
        return []
    return [Problem(_memory_line(forecast), _MEMORY, code="out_of_memory")]


def _does_not_fit(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    for problem in _beyond_gpu_memory(forecast):
        yield replace(problem, hint=_ways(plan, forecast, cluster))
    yield from beyond_host_memory(forecast.job, forecast.memory, cluster)


def _memory_line(forecast: Forecast) -> str:
    memory, device = forecast.memory, forecast.device
    fullest = max(memory.stages, key=lambda stage: stage.device_bytes)
    where = f"a rank of stage {fullest.pp}" if len(memory.stages) > 1 else "a rank"
    words = {"does not fit": "does not fit", "tight": "is tight"}.get(forecast.fit, "fits")
    return (
        f"memory {words}: {where} takes {memory_size(fullest.device_bytes)} of the "
        f"{memory_size(device.memory_bytes or 0)} of one {device.name}"
    )


def _ways(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> str:
    from orchestrator.planning.suggestions.available_remedies import cheapest_remedies  # jobs that fit need no search

    return cheapest_remedies(plan, forecast, cluster)


def _tight_or_unsure(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    if forecast.choice.is_assumed:
        if forecast.fit in ("tight", "does not fit"):
            yield Problem(f"{_memory_line(forecast)}, which is assumed", _MEMORY, _ways(plan, forecast, cluster))
        told = f"nothing says which GPUs this will run on: {forecast.device.name} is assumed"
        hint = "write launch.gpu, or gpu in the cluster's profile"
        if cluster is None and gpus_counted() == 0:
            on_cpu = plan.job.runtime.device == "auto"
            told += f"; this machine has none, and `run` {'trains on its CPU' if on_cpu else 'is refused'} here"
            hint += "; for this machine write runtime.device: cpu"
        yield Problem(told, ("launch.gpu",), hint, code="gpu_assumed")
    elif forecast.fit == "tight":
        yield Problem(_memory_line(forecast), _MEMORY, _ways(plan, forecast, cluster))


def _tensor_groups_cross_nodes(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    layout = plan.topology
    is_linked = layout.tensor_model_parallel_size <= linked_ranks(plan.job, forecast.device)
    if layout.tensor_parallel_crosses_nodes and not is_linked:
        size = layout.world_size // layout.nodes
        gpus = f"{size} GPU{'s' if size > 1 else ''}"
        message = f"tensor-parallel groups of {layout.tensor_model_parallel_size} span machines of {gpus}: slow"
        hint = f"a tensor-parallel size of at most {size} that divides it keeps groups on one machine"
        yield Problem(message, _LAYOUT, hint)


def _communication(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    kinds = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_transfer", "data_parallel")
    parts = {kind: forecast.time.parts.get(kind, 0.0) for kind in kinds}
    share = sum(parts.values()) / forecast.time.step_seconds
    if share > LARGE_COMMUNICATION and not forecast.device.is_cpu:
        worst = max(parts, key=lambda kind: parts[kind])
        message = f"{share:.0%} of the step goes to communication that nothing hides, most of it {worst}"
        yield Problem(message, _LAYOUT, "orchestrator tune searches for a layout with less")


def _copies_to_the_host(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """A cluster's variables go over what a launch sets by itself, and the plan does not know them."""
    wanted, is_written = device_connections(plan.job), CONNECTIONS in plan.job.launch.env
    if cluster is not None and not is_written and cluster.env.get(CONNECTIONS) == "1" and wanted > 1:
        message = f"{cluster.name} sets {CONNECTIONS}: 1, which delays computation queued behind copies to the host"
        hint = f"launch.env: {{{CONNECTIONS}: '{wanted}'}}"
        yield Problem(message, ("launch.env", "runtime.cpu_offloading_num_layers"), hint)
    share = forecast.time.parts["host_copies"] / forecast.time.step_seconds
    fraction = "optimizer.offload_fraction"
    if share > LARGE_COPIES and plan.job.optimizer.offload_fraction > 0:
        message = f"{share:.0%} of the step waits for copies to host memory and back"
        hint = "larger global batches update less often, and more replicas share out the optimizer's state"
        yield Problem(message, (fraction,), f"a smaller {fraction}; {hint}")
    elif share > LARGE_COPIES:
        message = f"{share:.0%} of the step waits for activations that move to host memory and back"
        hint = (
            "offload fewer layers, or recompute some instead: recompute_granularity: full, recompute_method: "
            "block, recompute_num_layers: how many"
        )
        yield Problem(message, ("runtime.cpu_offloading_num_layers",), hint)


def _work_at_risk(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """A clean stop saves first; a crash loses what came after the last checkpoint."""
    saving = plan.job.checkpoint
    intervals = [forecast.training_seconds]
    if saving.save_interval is not None:
        intervals.append(saving.save_interval * forecast.time.step_seconds)
    if saving.save_seconds is not None:
        intervals.append(float(saving.save_seconds))
    if (lost := min(intervals)) > LONG_LOSS:
        steps = max(1, int(LONG_LOSS / 4 / forecast.time.step_seconds))
        message = f"a crash loses up to {time_span(lost)} of work: that long from one checkpoint to the next"
        yield Problem(message, _SAVING, f"checkpoint.save_seconds: 1h, or save_interval: {steps}")


def _saved_at_the_end_only(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """An interval that is never reached is most often a slip; in a short try, it is not."""
    saving, steps = plan.job.checkpoint, plan.batch.train_iters
    interval, seconds = saving.save_interval, forecast.training_seconds
    if interval is not None and interval > steps and saving.save_seconds is None and seconds > SHORT_TRY:
        message = (
            f"save_interval {interval} is never reached in {steps} steps: the only checkpoint is the one at the end, "
            f"after {time_span(seconds)}"
        )
        yield Problem(message, _SAVING, f"at most {max(1, steps // 2)} saves before the end as well")


def _end_in_time(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    launch = plan.job.launch
    limit = launch.time or (cluster.time if cluster else None)
    if limit is None or cluster is None:
        return
    starts = forecast.training_seconds / max(1, limit - launch.stop_margin)
    if starts > launch.max_requeues + 1:
        all_starts = f"{launch.max_requeues + 1} starts of {spec_duration(limit)}"
        message = f"it takes {time_span(forecast.training_seconds)}, and {all_starts} end before"
        yield Problem(message, ("launch.time", "launch.max_requeues"), "raise launch.time or launch.max_requeues")


def _arithmetic(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    dtype, device = plan.job.precision.dtype, forecast.device
    if dtype not in device.peak_flops:
        message = f"{device.name} does not support {dtype}: it is planned at the speed of fp32, without MFU"
        yield Problem(message, ("precision.dtype",), f"it computes in {', '.join(device.peak_flops)}")


def _data(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    yield from plan.warnings


def _weights_to_start_from(plan: Plan, runs_dir: Path | None) -> Iterable[Problem]:
    if plan.job.checkpoint.pretrained is None:
        return ()
    from orchestrator.planning.checks.pretrained_weights import weights_to_start_from  # imports what opens checkpoints

    return weights_to_start_from(plan.job, plan.job.checkpoint.pretrained, runs_dir_of(plan.job, runs_dir))


def _unusual_values(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    return unusual_values(plan.job)


def _never_timed(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """Rates of MXFP8 and NVFP4 are a datasheet's, what of them is reached is FP8's on Hopper."""
    narrow = plan.job.precision.quantization
    if narrow is not None and narrow.is_microscaled and forecast.device.has_microscaling:
        kind = narrow.number_format.upper()
        message = f"the step time in {kind} follows from the datasheet of {forecast.device.name} and was never measured"
        yield Problem(message, (f"precision.{narrow.field}.recipe",), "orchestrator bench measures it")


WARNINGS: Mapping[str, Callable[[Plan, Forecast, ClusterSpec | None], Iterable[Problem]]] = {
    "gpu_memory": _tight_or_unsure,
    "tensor_parallel_across_nodes": _tensor_groups_cross_nodes,
    "pipeline_bubble": pipeline_idles,
    "communication": _communication,
    "host_copies": _copies_to_the_host,
    "work_at_risk": _work_at_risk,
    "saved_at_the_end_only": _saved_at_the_end_only,
    "time_limit": _end_in_time,
    "unusual_value": _unusual_values,
    "dtype": _arithmetic,
    "untimed_products": _never_timed,
    "data": _data,
    "train_step_missing": train_step_is_missing,
    "modules_hidden": modules_are_hidden,
    "cache_unwritable": cache_is_unwritable,
    "transformer_engine_missing": transformer_engine_is_missing,
    "kernels_missing": kernels_are_missing,
    "notification": nobody_can_be_told,
    "python_missing": python_is_missing,
    "variable_unset": variables_are_unset,
    "tracker_missing": trackers_are_missing,
}
"""What looks for each warning, by its code."""


def _upcycled_line(job: JobSpec) -> str:
    count, parts = job.model.expert_count, granularity(job.model)
    each = "each is a copy" if parts == 1 else f"every {parts} share a copy out"
    return f"the {count} experts of a layer start from the dense MLP of {job.checkpoint.pretrained}: {each}"


def _fine(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[str]:
    job, layout = plan.job, plan.topology
    yield "every rule of the spec is kept"
    if cluster is not None and not what_is_refused(job, cluster):
        nodes = f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}"
        each = f"{job.processes_per_node} {'process' if forecast.device.is_cpu else 'GPU'}"
        plural = ("es" if forecast.device.is_cpu else "s") if job.processes_per_node > 1 else ""
        yield f"{cluster.name} can give {nodes} with {each}{plural}{' on each' if layout.nodes > 1 else ''}"
    if forecast.fit == "fits" and not forecast.choice.is_assumed:
        yield _memory_line(forecast)
    if job.checkpoint.upcycle:
        yield _upcycled_line(job)
    if job.data.random_tokens:
        yield "random tokens need no data"
    elif job.has_task:
        if not task_problems(job.task):
            yield f"the files of {job.labelled_task.name} are here"
    elif plan.data_present:
        yield f"the data is here: {len(plan.sources)} source{'s' if len(plan.sources) > 1 else ''}"
    if plan.vocabulary.tokenizer_size is not None:
        tokens = f"{plan.vocabulary.tokenizer_size:,} tokens"
        is_bytes = job.data.tokenizer.type == "byte_level"
        yield (
            f"text is read as bytes, without a tokenizer: {tokens}" if is_bytes else f"the tokenizer is here: {tokens}"
        )
