"""What a changed spec means for a run that goes on: each changed field, its class and the reason (fields/resume.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.fields.base import Section
from orchestrator.fields.resume import GLOBAL_BATCH, ChangeClass, OnResume
from orchestrator.spec.job import JobSpec
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.schema.shape import declared_around, leaf_paths

_REPLICAS = "parallelism.data_parallel_size"


@dataclass(frozen=True)
class Change:
    """One field that differs."""

    path: str
    old: Any
    new: Any
    kind: ChangeClass
    reason: str


def diff_fields(old: JobSpec, new: JobSpec, *, experts_change_format: bool) -> list[Change]:
    """The differences in the order of the schema; empty for equal jobs. `experts_change_format`: what
    `kernel_selection.changes.diff_jobs` finds of their kernels.
    """
    changes = list(_field_changes(old, new, experts_change_format))
    if old.global_batch_size != new.global_batch_size and not any(
        change.path == "batch.global_batch_size" for change in changes
    ):
        reason = f"the global batch follows from micro-batch · micro-batches · DP: {GLOBAL_BATCH.reason}"
        sizes = old.global_batch_size, new.global_batch_size
        changes.append(Change("batch.global_batch_size", *sizes, "trajectory", reason))
    if not any(change.path == _REPLICAS for change in changes):
        meaning = on_resume(_REPLICAS).judge(old, new, experts_change_format)
        counts = old.data_parallel_size, new.data_parallel_size
        if meaning.kind != "safe":
            reason = f"DP follows from the processes and the other degrees: {meaning.reason}"
            changes.append(Change(_REPLICAS, *counts, meaning.kind, reason))
    return changes


def _field_changes(old: JobSpec, new: JobSpec, experts_change_format: bool) -> Iterator[Change]:
    for path in leaf_paths():
        before, after = _value(old, path), _value(new, path)
        if before == after:
            continue
        meaning = on_resume(path).judge(old, new, experts_change_format)
        yield Change(path, _plain(before), _plain(after), meaning.kind, meaning.reason)


def on_resume(path: str, root: type[Section] = JobSections) -> OnResume:
    """What a change of a field means."""
    declared = declared_around(path, OnResume, root)
    assert declared is not None, f"{path} is declared without what a change means for a run that goes on"
    return declared


def _value(job: JobSpec, path: str) -> Any:
    value: Any = job
    for part in path.split("."):
        if value is None:
            return None
        value = getattr(value, part)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [
            item.model_dump(mode="json", exclude_defaults=True) if isinstance(item, Section) else item for item in value
        ]
    return value
