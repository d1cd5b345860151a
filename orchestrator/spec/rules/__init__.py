"""Cross-field rules: plain functions of a job that yield what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.spec.rules import (
    bert,
    chat,
    cuda_graphs,
    experts,
    flash_attention,
    fp8,
    kernels,
    lora,
    mamba,
    notifications,
    operation,
    optimizer,
    paths,
    positions,
    recomputation,
    shapes,
    stages,
    t5,
    task,
    tensor_overlap,
    topology,
    training,
    variants,
    vision,
)
from orchestrator.spec.rules.base import Rule, Unavailable
from orchestrator.spec.rules.nearest import with_nearest
from orchestrator.spec.sections import JobSections

RULES: tuple[Rule, ...] = (
    *topology.RULES,
    *shapes.RULES,
    *stages.RULES,
    *positions.RULES,
    *experts.RULES,
    *recomputation.RULES,
    *kernels.RULES,
    *variants.RULES,
    *bert.RULES,
    *t5.RULES,
    *task.RULES,
    *mamba.RULES,
    *vision.RULES,
    *chat.RULES,
    *training.RULES,
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
    """What is wrong with a job or with the known part of one, one by one; without the values that would do instead."""
    for rule in RULES:
        try:
            yield from rule(job)  # one by one: what came before an unknown field counts
        except Unavailable:
            continue


def check(job: JobSections) -> list[Problem]:
    """Everything that is wrong with a job or with the known part of one, with the nearest values that would do."""
    return with_nearest(job, list(refusals(job)), refusals)
