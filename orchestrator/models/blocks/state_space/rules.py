"""How the sizes of state space layers divide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.paths import CP, TP
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient
from orchestrator.models.blocks.registry import STATE_SPACE
from orchestrator.models.blocks.state_space.parameters import state_space_heads, state_space_width
from orchestrator.models.layers import layers

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.model_fields import StateSpaceFields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

FAMILY, WIDTH, GROUPS = "model.architecture", "model.mamba_head_dim", "model.mamba_num_groups"


def state_space_shapes(job: Job[StateSpaceFields]) -> Iterator[Problem]:
    """Heads divide the width, groups the heads, and tensor parallelism both."""
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    if not model.family.is_hybrid or (STATE_SPACE,) not in layers(model):
        return
    width, head, groups = state_space_width(model), model.mamba_head_dim, model.mamba_num_groups
    if width % head:
        message = f"mamba_head_dim {head} does not divide 2 x hidden_size: {quotient(width, head)}"
        paths = (WIDTH, "model.hidden_size")
        yield Refusal(
            message, paths, "write mamba_num_heads", numbers=(width, head), offers=(divisors_of(width, WIDTH, head),)
        )
        return
    heads = state_space_heads(model)
    if heads % groups:
        message = f"mamba_num_groups {groups} does not divide the {heads} heads: {quotient(heads, groups)}"
        yield Refusal(message, (GROUPS, FAMILY), numbers=(heads, groups), offers=(divisors_of(heads, GROUPS, groups),))
    for name, count in (("groups", groups), ("heads", heads)):
        if count % tp:
            message = f"TP {tp} does not divide the {count} {name} of state space layers: {quotient(count, tp)}"
            path = f"model.mamba_num_{name}"
            offers = (divisors_of(count, TP, tp), multiples_of(tp, path, count))
            yield Refusal(message, (TP, path, FAMILY), numbers=(count, tp), offers=offers)


def state_space_heads_by_context_parallel(job: Job[StateSpaceFields]) -> Iterator[Problem]:
    """Ranks that share a sequence take whole heads of a tensor-parallel rank's: of whole groups, or of one each."""
    model, degrees = job.model, job.parallelism
    tp, cp = degrees.tensor_model_parallel_size, degrees.context_parallel_size
    if not model.family.is_hybrid or (STATE_SPACE,) not in layers(model) or cp == 1:
        return
    heads, groups = state_space_heads(model), model.mamba_num_groups
    if heads % tp or groups % tp:
        return
    if heads // tp % cp:
        message = f"heads of state space layers / (TP · CP) must be whole: {quotient(heads, tp * cp)}"
        path = "model.mamba_num_heads"
        offers = (divisors_of(heads // tp, CP, cp), multiples_of(tp * cp, path, heads))
        yield Refusal(message, (CP, path, FAMILY), numbers=(heads, tp, cp), offers=offers)
    elif groups // tp % cp and cp % (groups // tp):
        message = (
            f"CP {cp} neither divides the {groups // tp} groups of a tensor-parallel rank nor is a multiple of them"
        )
        offers = (divisors_of(groups // tp, CP, cp), multiples_of(tp * cp, GROUPS, groups))
        yield Refusal(message, (CP, GROUPS, FAMILY), numbers=(groups, tp, cp), offers=offers)


TENSOR_PARALLEL: tuple[Rule, ...] = (state_space_shapes,)
RULES: RulesByTopic = {"state_space": (*TENSOR_PARALLEL, state_space_heads_by_context_parallel)}
