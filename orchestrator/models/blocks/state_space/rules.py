"""How the sizes of state space layers divide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.paths import TP
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


TENSOR_PARALLEL: tuple[Rule, ...] = (state_space_shapes,)
RULES: RulesByTopic = {"state_space": TENSOR_PARALLEL}
