"""Cross-field rules: plain functions of a job that yield what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import Problem
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules import notifications, operation, paths
from orchestrator.spec.rules.base import Rule, Unavailable
from orchestrator.spec.rules.kernels import cuda_graphs, flash_attention, fp8, fused, recomputation
from orchestrator.spec.rules.model import (
    bert,
    blocks,
    experts,
    lora,
    mamba,
    positions,
    t5,
    variants,
    vision,
)
from orchestrator.spec.rules.nearest import with_nearest
from orchestrator.spec.rules.parallelism import divisibility, stages, tensor_overlap, topology
from orchestrator.spec.rules.training import chat, optimizer, schedule, task

RULES: tuple[Rule, ...] = (
    *topology.RULES,
    *divisibility.RULES,
    *stages.RULES,
    *positions.RULES,
    *experts.RULES,
    *recomputation.RULES,
    *fused.RULES,
    *variants.RULES,
    *blocks.RULES,
    *bert.RULES,
    *t5.RULES,
    *task.RULES,
    *mamba.RULES,
    *vision.RULES,
    *chat.RULES,
    *schedule.RULES,
    *optimizer.RULES,
    *lora.RULES,
    *fp8.RULES,
    *operation.RULES,
    *tensor_overlap.RULES,
    *flash_attention.RULES,
    *cuda_graphs.RULES,
    *paths.RULES,
    *notifications.RULES,
)


def refusals(job: JobSections) -> Iterator[Problem]:
    """What is wrong with a job or with the known part of one, one by one; without the values that would do instead.
    A problem that has no code of its own has the name of its rule.
    """
    for rule in RULES:
        try:
            for problem in rule(job):  # one by one: what came before an unknown field counts
                yield problem if problem.code is not None else replace(problem, code=rule.__name__)
        except Unavailable:
            continue


def check(job: JobSections) -> list[Problem]:
    """Everything that is wrong with a job or with the known part of one, with the nearest values that would do."""
    return with_nearest(job, list(refusals(job)), refusals)
