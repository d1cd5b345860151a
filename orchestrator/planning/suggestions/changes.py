"""A job with other values of some of its fields, and how `--set` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.spec.job import JobSpec


def with_fields(job: JobSpec, fields: Mapping[str, Any]) -> JobSpec:
    """The job with these, by dotted path. They are right one by one; what holds between them is for `refusals`."""
    by_section: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        section, _, name = path.partition(".")
        by_section.setdefault(section, {})[name] = value
    return job.changed(**by_section)


def overrides(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """As `--set` takes them."""
    return tuple(f"{path}={_yaml(value)}" for path, value in fields.items())


def set_options(fields: Mapping[str, Any]) -> str:
    """`--set a.b=1 --set c.d=2`."""
    return " ".join(f"--set {override}" for override in overrides(fields))


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
