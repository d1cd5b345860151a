"""Cross-field rules: plain functions that take a job and yield what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Unavailable
from orchestrator.models.blocks.registry import BLOCKS
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules import notifications, operation, paths
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.rules.kernels import cuda_graphs, flash_attention, fused, quantization, recomputation
from orchestrator.spec.rules.model import (
    bert,
    blocks,
    lora,
    mamba,
    native_resolution,
    pooled_images,
    positions,
    t5,
    vision,
)
from orchestrator.spec.rules.nearest import with_nearest
from orchestrator.spec.rules.parallelism import fully_sharded, sequence, stages, tensor_overlap, topology
from orchestrator.spec.rules.training import chat, optimizer, schedule, task

if TYPE_CHECKING:
    from orchestrator.models.blocks.protocols import Topic


def of_blocks(topic: Topic) -> tuple[Rule, ...]:
    """What the blocks of models say of a topic in their own folders."""
    return tuple(rule for block in BLOCKS for rule in block.rules.RULES.get(topic, ()))


RULES: tuple[Rule, ...] = (
    *topology.RULES,
    *of_blocks("ranks"),
    *of_blocks("sizes"),
    *sequence.RULES,
    *stages.RULES,
    *of_blocks("positions"),
    *positions.RULES,
    *of_blocks("experts"),
    *recomputation.RULES,
    *fused.RULES,
    *of_blocks("variants"),
    *blocks.RULES,
    *bert.RULES,
    *t5.RULES,
    *task.RULES,
    *mamba.RULES,
    *of_blocks("state_space"),
    *vision.RULES,
    *pooled_images.RULES,
    *native_resolution.RULES,
    *chat.RULES,
    *schedule.RULES,
    *optimizer.RULES,
    *lora.RULES,
    *quantization.RULES,
    *operation.RULES,
    *fully_sharded.RULES,
    *tensor_overlap.RULES,
    *flash_attention.RULES,
    *cuda_graphs.RULES,
    *paths.RULES,
    *notifications.RULES,
)


def refusals(job: JobSections, rules: Iterable[Rule] = RULES) -> Iterator[Problem]:
    """What is wrong with a job or with the known part of one, one by one; without the values that would do instead.
    A problem that has no code of its own has the name of its rule.
    """
    for rule in rules:
        try:
            for problem in rule(job):  # one by one: what came before an unknown field counts
                yield problem if problem.code is not None else replace(problem, code=rule.__name__)
        except Unavailable:
            continue


def undecided(job: JobSections) -> tuple[Rule, ...]:
    """The rules that refuse the known part of a job, or read what is not known: all others have nothing against the job
    whatever that is.
    """
    return tuple(rule for rule in RULES if not _passes(job, rule))


def _passes(job: JobSections, rule: Rule) -> bool:
    try:
        return next(rule(job), None) is None
    except Unavailable:
        return False


def check(job: JobSections) -> list[Problem]:
    """Everything that is wrong with a job or with the known part of one, with the nearest values that would do."""
    return with_nearest(job, list(refusals(job)), refusals)
