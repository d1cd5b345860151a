"""Cross-field rules: plain functions of a job that yield what is wrong with it."""

from __future__ import annotations

from orchestrator.errors import Problem
from orchestrator.spec.rules import (
    bert,
    chat,
    experts,
    fp8,
    kernels,
    lora,
    mamba,
    notifications,
    operation,
    optimizer,
    positions,
    recomputation,
    shapes,
    stages,
    t5,
    task,
    topology,
    training,
    variants,
)
from orchestrator.spec.rules.base import Rule, Unavailable
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
    *chat.RULES,
    *training.RULES,
    *optimizer.RULES,
    *lora.RULES,
    *fp8.RULES,
    *operation.RULES,
    *notifications.RULES,
)


def check(job: JobSections) -> list[Problem]:
    """Everything that is wrong with a job or with the known part of one."""
    problems = []
    for rule in RULES:
        try:
            for problem in rule(job):
                problems.append(problem)  # one by one: what came before an unknown field counts
        except Unavailable:
            continue
    return problems
