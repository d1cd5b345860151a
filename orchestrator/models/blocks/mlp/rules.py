"""How ranks share an MLP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.paths import HIDDEN
from orchestrator.models.blocks.mlp.fields import MlpSpec
from orchestrator.models.blocks.rules import by_tensor_parallel

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.model_fields import Fields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic


_OF_QUICK_GATE = ("activation_func_clamp_value", "glu_linear_offset")


def ffn_by_tensor_parallel(job: Job[Fields]) -> Iterator[Problem]:
    """Each tensor-parallel rank holds an equal part of the MLP."""
    model = job.model
    path = "model.ffn_hidden_size" if model.ffn_hidden_size is not None else HIDDEN
    yield from by_tensor_parallel(job, "ffn_hidden_size", model.ffn_size, path)


def quick_gate(job: Job[Fields]) -> Iterator[Problem]:
    """A clamp, and an offset, are of the gate that gpt-oss has."""
    model = job.model
    for name in _OF_QUICK_GATE:
        if model.activation != "quick_geglu" and getattr(model, name) != MlpSpec.model_fields[name].default:
            message = f"is for activation: quick_geglu, but activation is {model.activation}"
            yield Problem(message, (f"model.{name}", "model.activation"), "leave it out")


TENSOR_PARALLEL: tuple[Rule, ...] = (ffn_by_tensor_parallel,)
RULES: RulesByTopic = {"ranks": TENSOR_PARALLEL, "variants": (quick_gate,)}
