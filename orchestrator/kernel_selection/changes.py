"""What a changed spec means for a run that goes on, with the kernels that either job gets."""

from __future__ import annotations

from orchestrator.kernel_selection.experts import expert_products
from orchestrator.spec.job import JobSpec
from orchestrator.spec.schema.diff import Change, diff_fields


def diff_jobs(old: JobSpec, new: JobSpec) -> list[Change]:
    """The differences in the order of the schema; empty for equal jobs.

    In a job in FP8 small experts stay in 16 bits, and how many tokens one gets decides which are small. (Another format
    of all products has a class of its own.)
    """
    alike = old.precision.products == new.precision.products
    return diff_fields(old, new, experts_change_format=alike and expert_products(old) != expert_products(new))
