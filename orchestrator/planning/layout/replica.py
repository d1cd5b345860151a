"""One replica of a network that was trained, split for inference over other ranks than the training's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orchestrator.errors import UserError
from orchestrator.fields.refusals import divisors
from orchestrator.models.blocks.registry import BLOCKS
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stage_letters import evenly
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.rules.model.t5 import halves_of_the_pipeline

_OF_TENSORS: tuple[Rule, ...] = tuple(rule for block in BLOCKS for rule in block.rules.TENSOR_PARALLEL)
_OF_STAGES: tuple[Rule, ...] = (halves_of_the_pipeline,)
"""A T5's: layers of others are shared out as evenly as they can be."""


def at_layout(job: JobSpec, tp: int, pp: int) -> JobSpec:
    """The job with its network split over TP · PP ranks. Raises UserError when it cannot be split so."""
    model, own = job.model, job.parallelism
    if (tp, pp) == (own.tensor_model_parallel_size, own.pipeline_model_parallel_size):
        return job
    if pp > model.num_layers and not model.family.is_encoder_decoder:
        message = f"pipeline_model_parallel_size {pp} is more than the model's {model.num_layers} layers"
        raise UserError(f"{message}: {model.num_layers} at most", code="layout_does_not_fit_model")
    sizes: Iterable[int] = divisors(model.num_attention_heads)
    _check("tensor_model_parallel_size", tp, sizes, lambda size: _split(job, size, pp), _OF_TENSORS)
    sizes = range(1, model.encoder_layers + model.decoder_layers + 1)
    _check("pipeline_model_parallel_size", pp, sizes, lambda size: _split(job, tp, size), _OF_STAGES)
    return _split(job, tp, pp)


def _check(name: str, size: int, sizes: Iterable[int], split: Callable[[int], JobSpec], rules: Sequence[Rule]) -> None:
    """Raises UserError, with those of `sizes` that fit, where the rules refuse the job that is split by a size. None
    fits a model that they refuse however it is split: one that was stored by a version with other rules.
    """

    def refusals(size: int) -> list[str]:
        return [problem.message for rule in rules for problem in rule(split(size))]

    if refused := refusals(size):
        fit = ", ".join(str(other) for other in sizes if not refusals(other))
        way_out = f"sizes that fit: {fit}" if fit else "no size fits; leave it out to use the layout of the training"
        raise UserError(
            f"{name} {size} does not fit this model: {refused[0]}; {way_out}", code="layout_does_not_fit_model"
        )


def _split(job: JobSpec, tp: int, pp: int) -> JobSpec:
    """The job at other sizes. What says how layers are shared out goes with the pipeline that it was written for."""
    model = job.model
    shared_out = evenly(model.num_layers, pp) if pp > 1 and not model.family.is_encoder_decoder else None
    unset = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    changes: dict[str, Any] = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "pipeline_model_parallel_layout": shared_out,
        "pipeline_model_parallel_split_rank": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        **dict.fromkeys(unset),
        "expert_tensor_parallel_size": None if model.splits_experts else 1,
    }
    return job.changed(parallelism=changes)
