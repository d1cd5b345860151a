"""The fastest layouts of a job that fit its GPUs, by the estimates of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.api.planned_job import profile_named, vocabulary_size_of
from orchestrator.api.targets import GPU_OPTION, TargetOptions
from orchestrator.errors import SpecError, UserError
from orchestrator.kernel_selection.layers import layers_there
from orchestrator.planning.checks.partition_limits import partition_of, what_is_refused
from orchestrator.planning.estimates import machine_of
from orchestrator.planning.hardware import DeviceChoice, device_of
from orchestrator.planning.memory import capacity
from orchestrator.planning.memory.fit import TIGHT
from orchestrator.quantities import memory_size
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.documents.field_names import overridden
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob
from orchestrator.tuning.estimates import PlanEstimates
from orchestrator.tuning.gpu_counts import enough, spread
from orchestrator.tuning.layout import KEYS, fields_kept, on_machines
from orchestrator.tuning.layout_words import layout_words
from orchestrator.tuning.search import NEARLY, WHOLE, SearchResult, search
from orchestrator.tuning.space import Space


@dataclass(frozen=True)
class TuningTask:
    """What is tuned, and for what."""

    space: Space
    estimates: PlanEstimates
    choice: DeviceChoice
    layers_from: str
    """Why these layers are planned for."""
    per_node: int
    """GPUs of a whole machine."""


def tuning_task(
    loaded: LoadedJob, named: TargetOptions, overrides: Sequence[str], keep: Sequence[str], gpus: int | None
) -> TuningTask:
    """What is tuned of a job that was loaded with these names: everything but what `overrides` give and the keys of
    `keep`, for that many GPUs. Raises SpecError where it cannot be planned for them.
    """
    profile = profile_named(loaded, named)
    choice = device_of(loaded.job, profile)
    if named.gpu is not None:
        choice = choice._replace(how=GPU_OPTION)
    per_node = _gpus_per_node(loaded.job, choice, profile)
    job = _on_gpus(loaded, gpus, per_node, profile)
    typed = {overridden(word) for word in overrides}
    kept = fields_kept(keep) | {KEYS[key] for key in typed & KEYS.keys()}
    layers, why = layers_there(job, machine_of(choice.device))
    estimates = PlanEstimates(device=choice.device, layers=layers, vocab_size=vocabulary_size_of(loaded))
    return TuningTask(Space(job, frozenset(kept), choice.device.linked_machines), estimates, choice, why, per_node)


def search_layouts(task: TuningTask, *, measure: bool = False) -> SearchResult:
    """What fits; what is tight counts where it is going to be measured, or where nothing else fits. Raises
    UserError where nothing does.
    """
    found = search(task.space, task.estimates, WHOLE if measure else TIGHT)
    if not measure and not has_room(task, found):
        found = search(task.space, task.estimates, NEARLY)
    if not found.fitting:
        raise UserError(_nothing_fits(task, found), code="no_layout_fits")
    return found


def has_room(task: TuningTask, found: SearchResult) -> bool:
    """Whether a layout fits with room to spare: the job's own may be there without."""
    return any(capacity(each.memory, task.choice.device) != "tight" for each in found.fitting)


def _on_gpus(loaded: LoadedJob, gpus: int | None, per_node: int, profile: ClusterSpec | None) -> JobSpec:
    job = loaded.job
    nodes, each = spread(gpus, per_node) if gpus is not None else (job.launch.nodes, job.processes_per_node)
    job = on_machines(job, nodes, each)
    refused = what_is_refused(job, profile) if profile is not None else []
    if refused:
        raise SpecError(problems=[loaded.places.placed(problem) for problem in refused])
    return job


def _gpus_per_node(job: JobSpec, choice: DeviceChoice, profile: ClusterSpec | None) -> int:
    """What a whole machine has: the profile knows best. The CPU is one machine however many processes it runs."""
    if profile is not None:
        partition = profile.partitions.get(partition_of(job, profile) or "")
        if partition is not None and partition.gpus_per_node:
            return partition.gpus_per_node
    return 1 << 30 if choice.device.is_cpu else choice.device.gpus_per_node


def _nothing_fits(task: TuningTask, found: SearchResult) -> str:
    """Why there is no layout, what came nearest, and how many GPUs would do."""
    job, limit = task.space.job, task.estimates.memory_bytes
    where = f"{job.world_size} {task.choice.device.name}{'s' if job.world_size > 1 else ''}"
    if found.miss is None or limit is None:
        lost = found.lost.get("not legal")
        why = f", for example {layout_words(lost.example)}: {lost.why}" if lost and lost.example else ""
        return f"no layout of {job.name} is legal on {where}{why}"
    needs, has = memory_size(found.miss.memory.device_bytes), memory_size(limit)
    nearest = f"the leanest, {layout_words(found.miss.layout)}, needs {needs} on a GPU that has {has}"
    count = enough(task.space, task.estimates, task.per_node)
    way = f"{count} GPUs are enough: --gpus {count}" if count else "no number of GPUs was found on which it fits"
    if found.miss.memory.device_bytes <= limit:
        nearest += f", and more than {NEARLY:.0%} is too close to the limit"
        way += "; --measure shows whether it fits"
    return f"{job.name} does not fit {where} in any layout: {nearest}\n      {way}"
