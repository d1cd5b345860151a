"""Tensor parallelism that overlaps, which both sides have for some jobs only: read last, when the others are known."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.migration.gathering import Gathering
from orchestrator.migration.together.base import Together
from orchestrator.migration.writing_flags import FlagWriter
from orchestrator.spec.partial import Examination
from orchestrator.spec.rules.base import Unavailable
from orchestrator.spec.sections import JobSections
from orchestrator.spec.tensor_overlap import OVERLAP, obstacles

_FLAG = "tp-comm-overlap"


def read(given: Gathering) -> None:
    if not given.has(_FLAG):
        return
    reason = _obstacle(given)
    if reason is None:
        given.carry(_FLAG, OVERLAP, True)
    else:
        given.no_effect(_FLAG, f"{reason}; only when communication happens changes")


def _obstacle(given: Gathering) -> str | None:
    """What rules it out for the job as far as it is known."""
    document: dict[str, Any] = {}
    for path, value in given.migration.values.items():
        *sections, name = path.split(".")
        section = document
        for each in sections:
            section = section.setdefault(each, {})
        section[name] = value
    job = Examination(set(given.migration.missing), []).examine(JobSections, document)
    try:
        _, reason = next(obstacles(cast(JobSections, job)), (None, None))
    except Unavailable as field:
        return f"{field} is not known"
    return reason


def write(writer: FlagWriter) -> None:
    parallelism = writer.job.parallelism
    if parallelism.tp_comm_overlap and parallelism.tensor_model_parallel_size > 1:
        writer.add("MODEL_PARALLEL", _FLAG)
    elif parallelism.tp_comm_overlap:
        writer.say_otherwise(OVERLAP, "Megatron-LM refuses it where TP is 1, where it means nothing")


OVERLAP_TOGETHER = (Together({_FLAG: 0}, read, write, (OVERLAP,)),)
