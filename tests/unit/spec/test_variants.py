"""Rules of scaled rotary positions and of attention windows: what is legal passes, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.problems import problems_of

from orchestrator.spec.loading import load_text

FIGURES = st.sampled_from((0.5, 1.0, 4.0, 32.0))
SCALINGS = st.fixed_dictionaries(
    {"type": st.sampled_from(("linear", "llama3", "yarn")), "factor": st.sampled_from((1, 8, 2.5))},
    optional={
        "original_max_position_embeddings": st.sampled_from((1, 8192)),
        "low_freq_factor": FIGURES,
        "high_freq_factor": FIGURES,
        "beta_fast": FIGURES,
        "beta_slow": FIGURES,
        "attention_factor": FIGURES,
    },
)
MODELS = st.fixed_dictionaries(
    {},
    optional={
        "position_embedding_type": st.sampled_from(("rope", "learned_absolute", "alibi", "none")),
        "rotary_base": st.sampled_from((1, 10000)),
        "rotary_percent": st.sampled_from((0.5, 1.0)),
        "rope_scaling": SCALINGS,
        "sliding_window": st.sampled_from((1, 64, 10**6)),
        "window_attn_skip_freq": st.sampled_from((1, 2, 100, [0, 1, 1, 0], [0] * 4, [1, 0])),
    },
)
DEFAULTS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
OWN = {"linear": (), "llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}


def problems(small: Any, model: dict[str, Any]) -> list[Any]:
    sizes = "num_layers: 4, hidden_size: 128, num_attention_heads: 4, seq_length: 128"
    assert sizes in small.text
    return problems_of(lambda: load_text(small.text, overrides=[f"model={model}".replace("'", "")]))


def is_legal(model: dict[str, Any]) -> bool:
    """The rules once more, as a table."""
    rotary = model.get("position_embedding_type", "rope") == "rope"
    part = model.get("rotary_percent", 1.0) < 1
    if part and not rotary:
        return False
    skip = model.get("window_attn_skip_freq")
    if skip is not None and ("sliding_window" not in model or skip in (1, [0] * 4, [1, 0])):
        return False
    scaling = model.get("rope_scaling")
    if scaling is None:
        return True
    if not rotary:
        return False
    figures, own = DEFAULTS | scaling, OWN[scaling["type"]]
    if any(figures[name] != value and name not in own for name, value in DEFAULTS.items()):
        return False
    if "attention_factor" in scaling and scaling["type"] != "yarn":
        return False
    if not own:
        return True
    in_order = figures[own[0]] < figures[own[1]]
    return (
        in_order
        and "original_max_position_embeddings" in scaling
        and not (scaling["type"] == "yarn" and model.get("rotary_base") == 1)
    )


@given(MODELS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_variants_are_legal_when_they_mean_something(small: Any, model: dict[str, Any]) -> None:
    found = problems(small, model)
    assert (found == []) == is_legal(model), found
    assert all(problem.hint for problem in found)


REFUSED: dict[tuple[str, ...], list[str]] = {
    ("model={rope_scaling: {type: llama3, factor: 8}}",): ["rope_scaling model.rope_scaling"],
    ("model={rope_scaling: {type: linear, factor: 2, beta_fast: 9}}",): ["rope_scaling model.rope_scaling.beta_fast"],
    ("model={rope_scaling: {type: linear, factor: 0.5}}",): ["out_of_range model.rope_scaling.factor"],
    ("model={rope_scaling: {type: ntk, factor: 2}}",): ["unknown_choice model.rope_scaling.type"],
    ("model={sliding_window: 8, window_attn_skip_freq: [1, 0]}",): [
        "window_of_some_layers model.window_attn_skip_freq"
    ],
    ("model={sliding_window: 8, window_attn_skip_freq: [0, 0, 0, 0]}",): [
        "window_of_some_layers model.window_attn_skip_freq"
    ],
    ("model={window_attn_skip_freq: 2}",): ["window_of_some_layers model.window_attn_skip_freq"],
    ("model.v_head_dim=64",): ["latents_are_there model.v_head_dim"],
    ("model={kv_lora_rank: 16, position_embedding_type: learned_absolute}",): [
        "rotated_part model.position_embedding_type"
    ],
    ("model={kv_lora_rank: 16, qk_pos_emb_head_dim: 5}",): ["rotated_part model.qk_pos_emb_head_dim"],
    ("model={kv_lora_rank: 16, num_query_groups: 1, kv_channels: 8, rotary_percent: 0.5}",): [
        "fields_of_other_attention model.num_query_groups",
        "fields_of_other_attention model.kv_channels",
        "fields_of_other_attention model.rotary_percent",
    ],
    ("model={kv_lora_rank: 16, softmax_scale: 1, add_qkv_bias: true, sliding_window: 8}",): [
        "fields_of_other_attention model.softmax_scale",
        "fields_of_other_attention model.add_qkv_bias",
        "fields_of_other_attention model.sliding_window",
    ],
    ("model={kv_lora_rank: 16, attention_logit_softcapping: 30}",): [
        "fields_of_other_attention model.attention_logit_softcapping"
    ],
    ("model={kv_lora_rank: 16, parallel_residual: two_norms}",): ["attention model.parallel_residual"],
    ("model={kv_lora_rank: 16, linear_attention_freq: 2, add_bias_linear: false}",): [
        "attention model.linear_attention_freq"
    ],
    ("model={kv_lora_rank: 16, softmax_type: learnable}",): ["attention model.softmax_type"],
    ("model={rope_scaling: {type: linear, factor: 2, truncate: false}}",): ["rope_scaling model.rope_scaling.truncate"],
    ("model={kv_lora_rank: 16, lora: {target_modules: [linear_q_down_proj]}}", "checkpoint.pretrained=another"): [
        "matrices_are_there model.lora.target_modules"
    ],
    ("model={lora: {target_modules: [linear_qkv, out_proj]}}", "checkpoint.pretrained=another"): [
        "matrices_are_there model.lora.target_modules"
    ],
    (
        "model={num_layers: 4, linear_attention_freq: [1, 1, 0, 0], add_bias_linear: false}",
        "model.lora={target_modules: [linear_qkv]}",
        "checkpoint.pretrained=another",
        "parallelism.pipeline_model_parallel_size=2",
        "launch.gpus_per_node=2",
    ): ["something_to_train model.lora"],
    ("model={kv_lora_rank: 16}", "runtime={layers: transformer_engine, cpu_offloading_num_layers: 1}"): [
        "untried_with_latents runtime.cpu_offloading_num_layers"
    ],
    ("model={kv_lora_rank: 16}", "precision={fp8: {recipe: delayed}}"): ["untried_with_latents precision.fp8"],
    ("model.mtp_loss_scaling_factor=0.3",): ["prediction_layers_are_there model.mtp_loss_scaling_factor"],
    ("model={mtp_num_layers: 1, position_embedding_type: learned_absolute}",): [
        "predicting_families model.mtp_num_layers"
    ],
    ("model={mtp_num_layers: 1, architecture: bert}",): ["predicting_families model.mtp_num_layers"],
    ("model={mtp_num_layers: 1, no_rope_freq: 2}",): ["untried_with_predictions model.no_rope_freq"],
    ("model={mtp_num_layers: 1, sliding_window: 8, window_attn_skip_freq: 2, rotary_base_local: 500}",): [
        "untried_with_predictions model.rotary_base_local",
        "untried_with_predictions model.window_attn_skip_freq",
    ],
    ("model={num_experts: 4, moe_router_topk: 2}", "checkpoint={pretrained: dense, upcycle: true}"): [
        "upcycled_weights checkpoint.upcycle"
    ],
    (
        "model={num_experts: 4, add_bias_linear: false, moe_router_topk: 1, moe_router_pre_softmax: true}",
        "model.moe_apply_probs_on_input=true",
        "checkpoint={pretrained: dense, upcycle: true}",
    ): ["upcycled_routing checkpoint.upcycle"],
    ("model={mtp_num_layers: 1}", "precision={fp8: {recipe: delayed}}", "runtime.train_step=steps:Own"): [
        "untried_with_predictions precision.fp8",
        "untried_with_predictions runtime.train_step",
    ],
    ("model={mtp_num_layers: 1}", "runtime={layers: transformer_engine, cpu_offloading_num_layers: 1}"): [
        "untried_with_predictions runtime.cpu_offloading_num_layers"
    ],
    ("model={mtp_num_layers: 1, lora: {rank: 4}}", "checkpoint.pretrained=another"): [
        "untried_with_predictions model.lora"
    ],
    (
        "model={mtp_num_layers: 1}",
        "runtime={recompute_granularity: full, recompute_method: block, recompute_num_layers: 1}",
    ): ["recomputed_predictions runtime.recompute_method"],
    (
        "model={mtp_num_layers: 1}",
        "parallelism={pipeline_model_parallel_size: 2, pipeline_model_parallel_layout: Ettt|tL}",
        "launch.gpus_per_node=2",
    ): ["predictions_of_last_stage parallelism.pipeline_model_parallel_layout"],
    (
        "model={mtp_num_layers: 1, num_layers: 3}",
        "parallelism={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}",
        "parallelism.account_for_loss_in_pipeline_split=true",
        "launch.gpus_per_node=2",
    ): ["layer_before_predictions parallelism.account_for_loss_in_pipeline_split"],
    ("model={window_size: 4095}",): ["unknown_key model.window_size"],
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_what_is_wrong_is_named(small: Any, overrides: tuple[str, ...]) -> None:
    assert small.refused(*overrides) == REFUSED[overrides]
