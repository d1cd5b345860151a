"""What goes with multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.models.blocks.multi_token_prediction.fields import MultiTokenPredictionSpec
from orchestrator.models.blocks.rules import by_family, by_switch

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.multi_token_prediction.model_fields import PredictionFields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

LAYERS = "model.mtp_num_layers"
_POSITIONS = ("rope", "none")


def prediction_layers_are_there(job: Job[PredictionFields]) -> Iterator[Problem]:
    """What is said of these layers is said of a model that has some."""
    yield from by_switch(job, MultiTokenPredictionSpec, "mtp_num_layers", "multi-token prediction")


def predicting_families(job: Job[PredictionFields]) -> Iterator[Problem]:
    """Further tokens are those of a decoder, told apart by no table of positions: the last stage has none."""
    model = job.model
    if not model.predicts_further:
        return
    refused = list(by_family(job, "multi_token_prediction", LAYERS))
    yield from refused
    if not refused and model.position_embedding_type not in _POSITIONS:
        message = f"goes with positions that are rope or none, but they are {model.position_embedding_type}"
        yield Problem(message, (LAYERS, "model.position_embedding_type"), "write rope")


def untried_with_predictions(job: Job[PredictionFields]) -> Iterator[Problem]:
    """What was not tried with further predictions, or what megatron-core does without for their layers."""
    model, runtime = job.model, job.runtime
    if not model.predicts_further:
        return
    refused = {
        "precision.fp8": job.precision.fp8 is not None,
        "precision.fp4": job.precision.fp4 is not None,
        "runtime.cpu_offloading_num_layers": runtime.cpu_offloading_num_layers is not None,
        "runtime.train_step": runtime.train_step is not None,
        "data.chat": job.data.packs,
        "model.vision": model.has_vision,
        "model.lora": model.has_adapters,
        "model.no_rope_freq": model.no_rope_freq is not None,
        "model.rotary_base_local": model.rotary_base_local is not None,
        "model.window_attn_skip_freq": model.window_attn_skip_freq is not None,
        "model.attention_chunk_size": model.has_chunks,
        "model.norm_bias": not model.norm_bias,
        "model.parallel_residual": model.parallel_residual is not None,
    }
    for path, is_refused in refused.items():
        if is_refused:
            what = "packed conversations do" if path == "data.chat" else "does"
            yield Problem(f"{what} not go with multi-token prediction", (path, LAYERS), "leave one out")


def recomputed_predictions(job: Job[PredictionFields]) -> Iterator[Problem]:
    """megatron-core recomputes these layers whole one by one, or not at all."""
    runtime = job.runtime
    if not job.model.predicts_further or runtime.recompute_granularity != "full":
        return
    if (runtime.recompute_method, runtime.recompute_num_layers) != ("uniform", 1):
        message = "layers of multi-token prediction are recomputed one by one"
        paths = ("runtime.recompute_method", "runtime.recompute_num_layers", LAYERS)
        yield Problem(message, paths, "write recompute_method: uniform and recompute_num_layers: 1")


def predictions_of_last_stage(job: Job[PredictionFields]) -> Iterator[Problem]:
    """These layers are on the last stage, which letters do not say."""
    if job.model.predicts_further and job.parallelism.pipeline_model_parallel_layout is not None:
        path = "parallelism.pipeline_model_parallel_layout"
        yield Problem(
            "has no letter for multi-token prediction", (path, LAYERS), "write the lengths of both end stages"
        )


TENSOR_PARALLEL: tuple[Rule, ...] = ()
RULES: RulesByTopic = {
    "variants": (
        prediction_layers_are_there,
        predicting_families,
        untried_with_predictions,
        recomputed_predictions,
        predictions_of_last_stage,
    ),
}
