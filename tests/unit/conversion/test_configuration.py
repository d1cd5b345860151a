"""config.json and the model section, one from the other, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.conversion.hugging_face.configuration import keys_read, read_config, to_config, to_model
from orchestrator.conversion.hugging_face.families.registry import (
    FAMILIES,
    family_of_folder,
    family_of_model,
    family_of_type,
)
from orchestrator.conversion.shapes import shape_of
from orchestrator.conversion.weight_mapping import Family
from orchestrator.errors import UserError
from orchestrator.planning.parameters import parameters
from orchestrator.spec.loading import load_text

LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "vocab_size": 256, "num_hidden_layers": 1, "hidden_size": 8},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8},
}
PRESETS = {
    **{"llama3-8b": "llama", "llama3.1-8b": "llama", "mistral-7b": "mistral", "qwen2.5-7b": "qwen2"},
    **{"qwen3-8b": "qwen3", "gemma-2b": "gemma", "gpt2": "gpt2"},
    **{"mixtral-8x7b": "mixtral", "bert-345m": "megatron-bert", "bert-base": "bert"},
    # Phi-3 and Phi-4 are those networks, with two pairs of matrices joined in their files.
    **{"phi3-mini": "mistral", "phi4": "llama", "starcoder2-7b": "starcoder2", "stablelm-3b": "stablelm"},
    **{"stablelm2-1.6b": "stablelm", "nemotron4-15b": "nemotron"},
    **{"qwen1.5-moe-a2.7b": "qwen2_moe", "qwen2-57b-a14b": "qwen2_moe"},
    **{"glm4.5": "glm4_moe", "glm4.5-air": "glm4_moe", "deepseek-v3": "deepseek_v3"},
    **{"deepseek-v2-lite": "deepseek_v2", "deepseek-v2": "deepseek_v2"},
    **{"qwen3-30b-a3b": "qwen3_moe", "t5-base": "t5", "t5-v1.1-base": "t5"},
}


def job_of(model: dict[str, Any]) -> Any:
    document = {
        **{"name": "imported", "model": model, "data": {"random_tokens": True}, "optimizer": {"lr": 1e-5}},
        **{"batch": {"global_batch_size": 8}, "schedule": {"train_iters": 1}},
    }
    return load_text(yaml.safe_dump(document)).job


@pytest.mark.parametrize(("preset", "family"), PRESETS.items())
def test_presets_are_of_their_families(preset: str, family: str) -> None:
    """And every weight that the plan counts is in the table, with its shape."""
    job = job_of({"preset": preset})
    found = family_of_model(job.model)
    assert found.model_type == family
    shapes = {
        (weight.rule.ours, weight.place): shape_of(weight.rule.ours, job.model, job.model.vocab_size)
        for weight in found.weights(job.model)
        if not weight.rule.ours.endswith(".expert_bias")  # which is no parameter
    }
    sizes = (shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes.values())
    assert sum(sizes) == parameters(job, job.model.vocab_size).total
    again = job_of(to_model(to_config(job.model, found, job.model.vocab_size), found)).model
    unlike = {name for name in type(again).model_fields if getattr(again, name) != getattr(job.model, name)}
    # What is the same, written out, and how long a training sample is.
    said = {
        "decoder_num_layers",
        "num_tokentypes",
        "preset",
        "seq_length",
        "max_position_embeddings",
        "num_query_groups",
        "kv_channels",
        "ffn_hidden_size",
    }
    assert unlike <= said
    assert (again.query_groups, again.head_dim, again.ffn_size, again.positions) == (
        *(job.model.query_groups, job.model.head_dim),
        *(job.model.ffn_size, job.model.positions),
    )


@pytest.mark.parametrize("preset", ["llama3-8b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "gemma-2b", "gpt2"])
def test_adapters_make_no_other_family(preset: str) -> None:
    """Once they are part of the weights nothing is left of them."""
    plain, tuned = job_of({"preset": preset}).model, job_of({"preset": preset, "lora": {"rank": 8}}).model
    family = family_of_model(tuned)
    assert family is family_of_model(plain)
    assert to_config(tuned, family, 100) == to_config(plain, family, 100)


GLM = {"model_type": "glm4_moe", "first_k_dense_replace": 0}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model_type": "phimoe"}, "model_type 'phimoe' is none of those"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "of type 'longrope'"),
        ({"model_type": "stablelm", "use_parallel_residual": True}, "use_parallel_residual is true"),
        ({"model_type": "stablelm", "qk_layernorm": True}, "qk_layernorm is true"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"quantization_config": {}}, "quantized weights"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary positions of type 'dynamic'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}}, "with truncate"),
        ({"rope_theta": 10000.5}, "rope_theta is 10000.5"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type is .relative_key"),
        ({"model_type": "bert", "hidden_act": "gelu_new"}, "BERT is imported with gelu$"),
        ({"model_type": "t5", "feed_forward_proj": "gated-relu"}, "feed_forward_proj is 'gated-relu'"),
        ({**GLM, "norm_topk_prob": False}, "norm_topk_prob is false"),
        ({**GLM, "num_experts_per_tok": 1}, "norm_topk_prob is true"),
        ({**GLM, "n_shared_experts": 0}, "n_shared_experts is 0"),
        ({"model_type": "glm4_moe", "first_k_dense_replace": 99}, "first_k_dense_replace is 99"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 99}, "decoder_sparse_step is 99"),
        ({"model_type": "t5", "is_decoder": True}, "is_decoder is true"),
        ({"intermediate_size": None}, "no intermediate_size"),
        ({"vocab_size": "many"}, "whole number"),
    ],
)
def test_what_cannot_be_represented_is_refused(more: dict[str, Any], said: str) -> None:
    config = {**LLAMA, **more}
    with pytest.raises(UserError, match=said):
        to_model(config, family_of_type(config["model_type"]))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"moe_layer_freq": 2}, "model.moe_layer_freq is 2, and Mixtral has 1"),
        ({"moe_router_pre_softmax": True}, "model.moe_router_pre_softmax is true, and Mixtral has false"),
        (
            {"moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": 0},
            "is sinkhorn, and Mixtral has aux_loss or seq_aux_loss or",
        ),
        ({"moe_shared_expert_intermediate_size": 64}, "is 64, and Mixtral has none"),
    ],
)
def test_other_experts_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        family_of_model(job_of({"preset": "mixtral-8x7b", **more}).model)


@pytest.mark.parametrize(
    ("model_type", "more", "untied", "scaled"),
    [
        ("t5", {}, False, True),
        ("t5", {"tie_word_embeddings": False}, True, False),
        ("t5", {"scale_decoder_outputs": False}, False, False),
        ("mt5", {}, False, False),
        ("mt5", {"tie_word_embeddings": False}, True, False),
    ],
)
def test_the_output_of_t5(model_type: str, more: dict[str, Any], untied: bool, scaled: bool) -> None:
    """Scaled where transformers does, and written as it was read."""
    config = {"vocab_size": 256, "num_layers": 3, **more}
    model = job_of(to_model(config, family_of_type(model_type))).model
    assert (model.untie_embeddings_and_output_weights, model.scale_decoder_outputs) == (untied, scaled)
    assert (model.encoder_layers, model.decoder_layers, model.head_dim) == (3, 3, 64)
    written = to_config(model, family_of_model(model), 256)
    assert (written["model_type"], written["num_decoder_layers"]) == ("t5", 3)
    assert (written["tie_word_embeddings"], written["scale_decoder_outputs"]) == (not untied, scaled)


def test_a_bert_is_told_by_its_weights(tmp_path: Path) -> None:
    """Published BERTs say BertForMaskedLM of files that hold the binary head too."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    assert family_of_folder(tmp_path).architecture == "BertForPreTraining", "the weights are missing, and said to be"
    names = dict.fromkeys(("bert.embeddings.LayerNorm.weight", "cls.seq_relationship.weight"), "model.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert family_of_folder(tmp_path).architecture == "BertForPreTraining"
    index.write_text(json.dumps({"weight_map": {"bert.embeddings.LayerNorm.weight": "model.safetensors"}}))
    assert family_of_folder(tmp_path).architecture == "BertForMaskedLM"


def test_a_bert_without_types_is_refused() -> None:
    model = {"preset": "bert-base", "bert_binary_head": False}
    with pytest.raises(UserError, match=r"the nearest is BERT that predicts.*model\.num_tokentypes is none"):
        family_of_model(job_of(model).model)
    assert family_of_model(job_of({**model, "num_tokentypes": 2}).model).architecture == "BertForMaskedLM"


def test_positions_that_yarn_has_made_longer() -> None:
    """Some versions of transformers take the factor from the two lengths, others as it is written."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    for positions in (32, 128):
        config = {**LLAMA, "max_position_embeddings": positions, "rope_scaling": scaling}
        family = family_of_type("llama")
        written = to_config(job_of(to_model(config, family)).model, family, 256)
        assert written["max_position_embeddings"] == 128
        assert written["rope_scaling"]["factor"] == 4.0


def test_weights_that_were_to_start_without_spread() -> None:
    assert "init_method_std" not in to_model({**LLAMA, "initializer_range": 0.0}, family_of_type("llama"))


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_folder_that_is_no_model(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=3,
)
MORE = st.sampled_from(FAMILIES).flatmap(
    lambda family: st.tuples(st.just(family), st.dictionaries(st.sampled_from(sorted(keys_read(family))), VALUES))
)


@given(MORE)
def test_any_config_is_read_or_refused(more: tuple[Family, dict[str, Any]]) -> None:
    family, values = more
    base = {**LLAMA, "n_layer": 1, "n_embd": 8, "n_head": 2}
    config = {**{key: value for key, value in base.items() if key in keys_read(family)}, **values}
    try:
        model = job_of(to_model(config, family)).model
    except UserError:
        return
    assert family_of_model(model).fixed["architecture"] == model.architecture
    assert json.dumps(to_config(model, family, 256))
