"""One replica of a network that was trained, split for inference over other ranks than the training's."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import UserError
from orchestrator.spec.job import JobSpec
from orchestrator.spec.stage_letters import evenly


def at_layout(job: JobSpec, tp: int, pp: int) -> JobSpec:
    """The job with its network split over TP · PP ranks. Raises UserError when it cannot be split so."""
    model, own = job.model, job.parallelism
    if (tp, pp) == (own.tensor_model_parallel_size, own.pipeline_model_parallel_size):
        return job
    for size, what in ((model.num_attention_heads, "attention heads"), (model.query_groups, "query groups")):
        if size % tp and tp % size:
            raise UserError(f"tensor_model_parallel_size {tp} does not divide the model's {size} {what}")
    if pp > model.num_layers:
        raise UserError(f"pipeline_model_parallel_size {pp} is more than the model's {model.num_layers} layers")
    # What says how layers are shared out goes with the pipeline that it was written for.
    shared_out = evenly(model.num_layers, pp) if pp > 1 and model.architecture != "t5" else None
    unset = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "expert_tensor_parallel_size")
    changes: dict[str, Any] = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "pipeline_model_parallel_layout": shared_out,
        "pipeline_model_parallel_split_rank": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        **dict.fromkeys(unset),
    }
    return job.model_copy(update={"parallelism": own.model_copy(update=changes)})
