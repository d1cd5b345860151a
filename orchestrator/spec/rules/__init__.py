"""Cross-field rules: plain functions of a job that yield what is wrong with it."""

from __future__ import annotations

from orchestrator.errors import Problem
from orchestrator.spec.rules import operation, positions, shapes, topology, training
from orchestrator.spec.rules.base import Rule, Unavailable
from orchestrator.spec.sections import JobSections

RULES: tuple[Rule, ...] = (
    *topology.RULES,
    *shapes.RULES,
    *positions.RULES,
    *training.RULES,
    *operation.RULES,
)

WRITTEN_RULES: tuple[Rule, ...] = (operation.overlapped_param_gather,)
"""Rules on what a person wrote out, where the same value as a default is fine."""


def check(job: JobSections, rules: tuple[Rule, ...] = RULES) -> list[Problem]:
    """Everything that is wrong with a job or with the known part of one."""
    problems = []
    for rule in rules:
        try:
            for problem in rule(job):
                problems.append(problem)
        except Unavailable:
            continue
    return problems


def check_written(job: JobSections) -> list[Problem]:
    """The rules on what was written out; a stored spec, which writes everything out, is not asked."""
    return check(job, WRITTEN_RULES)
