"""config.json and the model section, one from the other, without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused

from orchestrator.conversion.hugging_face.config_json import keys_read, read_config, to_config, to_model
from orchestrator.conversion.hugging_face.families.registry import (
    Kind,
    families,
    families_of,
    family_of_folder,
    family_of_model,
    family_of_type,
)
from orchestrator.conversion.shapes import shape_of
from orchestrator.conversion.weight_mapping import Family
from orchestrator.errors import UserError
from orchestrator.models.blocks.registry import BLOCKS, EXPERTS, MLP
from orchestrator.planning.parameters import parameters
from orchestrator.spec.loading import load_text

LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "vocab_size": 256, "num_hidden_layers": 1, "hidden_size": 8},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8},
}
TWICE = ["full_attention", "full_attention", "sliding_attention"]
PRESETS = {
    **{"llama3-8b": "llama", "llama3.1-8b": "llama", "mistral-7b": "mistral", "qwen2.5-7b": "qwen2"},
    "ministral-8b": "ministral",
    **{"qwen3-8b": "qwen3", "gemma-2b": "gemma", "gpt2": "gpt2"},
    **{"mixtral-8x7b": "mixtral", "bert-345m": "megatron-bert", "bert-base": "bert", "roberta-base": "roberta"},
    **{"modernbert-base": "modernbert", "modernbert-large": "modernbert"},
    # Phi-3 and Phi-4 are those networks, with two pairs of matrices joined in their files.
    **{"phi3-mini": "mistral", "phi4": "llama", "starcoder2-3b": "starcoder2", "stablelm-3b": "stablelm"},
    **{"stablelm2-1.6b": "stablelm", "stablelm2-12b": "stablelm", "nemotron4-15b": "nemotron"},
    **{"qwen3-next-80b-a3b": "qwen3_next", "qwen1.5-moe-a2.7b": "qwen2_moe", "qwen2-57b-a14b": "qwen2_moe"},
    **{"glm4.5": "glm4_moe", "glm4.5-air": "glm4_moe", "deepseek-v3": "deepseek_v3"},
    **{"gemma2-2b": "gemma2", "gemma2-27b": "gemma2", "gemma3-270m": "gemma3_text", "gemma3-27b": "gemma3_text"},
    **{"gemma3-4b-vision": "gemma3", "gemma3-12b-vision": "gemma3", "gemma3-27b-vision": "gemma3"},
    **{"granite3.1-2b": "granite", "smollm3-3b": "smollm3", "glm4-9b-2024": "glm", "glm4-32b": "glm4"},
    **{"olmo2-1b": "olmo2", "olmo2-32b": "olmo2", "olmo3-7b": "olmo3", "olmo3-32b": "olmo3"},
    **{"gpt-oss-20b": "gpt_oss", "gpt-oss-120b": "gpt_oss"},
    **{"pythia-70m": "gpt_neox", "pythia-12b": "gpt_neox", "gpt-neox-20b": "gpt_neox"},
    **{"falcon-7b": "falcon", "falcon-11b": "falcon", "falcon-40b": "falcon", "falcon-180b": "falcon"},
    **{"command-r-35b": "cohere", "command-r-plus-104b": "cohere", "command-r7b": "cohere2"},
    **{"olmoe-1b-7b": "olmoe", "granite3.0-1b-a400m": "granitemoe", "granite3.0-3b-a800m": "granitemoe"},
    **{"mamba2-130m": "mamba2", "mamba2-2.7b": "mamba2", "codestral-mamba-7b": "mamba2"},
    **{"nemotron-h-4b": "nemotron_h", "nemotron-h-8b": "nemotron_h", "nemotron-h-47b": "nemotron_h"},
    "nemotron-nano-9b-v2": "nemotron_h",
    **{"deepseek-v2-lite": "deepseek_v2", "deepseek-v2": "deepseek_v2"},
    **{"llama4-scout": "llama4_text", "llama4-maverick": "llama4_text"},
    **{"qwen3-30b-a3b": "qwen3_moe", "t5-base": "t5", "t5-v1.1-base": "t5"},
}


def job_of(model: dict[str, Any]) -> Any:
    document = {
        **{"name": "imported", "model": model, "data": {"random_tokens": True}, "optimizer": {"lr": 1e-5}},
        **{"batch": {"global_batch_size": 8}, "schedule": {"train_iters": 1}},
    }
    return load_text(yaml.safe_dump(document)).job


def test_weights_of_some_layers_name_their_block() -> None:
    named = {rule.only_in for family in families() for rule in (*family.rules, *family.further)} - {None}
    assert {MLP.name, EXPERTS.name} < named <= {block.name for block in BLOCKS}


def test_a_family_is_listed_under_its_kind_alone() -> None:
    """Whatever else a model has, families of other kinds are further from it: they are not looked at."""
    kinds = {family.name: kind_of(family) for family in families()}
    listed = [(family.name, kind) for kind in set(kinds.values()) for family in families_of(kind)]
    assert sorted(listed) == sorted(kinds.items())


def kind_of(family: Family) -> Kind:
    """By what its table takes."""
    images = family.images.type if family.images is not None else None
    return Kind(family.fixed["architecture"], "num_experts" in family.sizes, images)


@pytest.mark.parametrize(("preset", "family"), PRESETS.items())
def test_presets_are_of_their_families(preset: str, family: str) -> None:
    """And every weight that the plan counts is in the table, with its shape."""
    job = job_of({"preset": preset})
    found = family_of_model(job.model)
    assert found.model_type == family
    weights = {
        (weight.rule.ours, weight.place)
        for weight in found.weights(job.model)
        if not weight.rule.ours.endswith(".expert_bias")  # which is no parameter
    }
    sizes = {name: math.prod(shape_of(name, job.model, job.model.vocab_size)) for name in {name for name, _ in weights}}
    assert sum(sizes[name] for name, _ in weights) == parameters(job, job.model.vocab_size).total
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
        "softmax_scale",
    }
    assert unlike <= said
    assert (again.query_groups, again.head_dim, again.ffn_size, again.positions, again.scale_of_scores) == (
        *(job.model.query_groups, job.model.head_dim),
        *(job.model.ffn_size, job.model.positions, job.model.scale_of_scores),
    )


@pytest.mark.parametrize("preset", ["llama3-8b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "gemma-2b", "gpt2"])
def test_adapters_make_no_other_family(preset: str) -> None:
    """Once they are part of the weights nothing is left of them."""
    plain, tuned = job_of({"preset": preset}).model, job_of({"preset": preset, "lora": {"rank": 8}}).model
    family = family_of_model(tuned)
    assert family is family_of_model(plain)
    assert to_config(tuned, family, 100) == to_config(plain, family, 100)


@pytest.mark.parametrize(
    ("model_type", "more", "window", "freq"),
    [
        ("gemma2", {"layer_types": TWICE}, 4096, [0, 0, 1]),
        ("ministral", {"layer_types": TWICE}, 4096, [0, 0, 1]),
        ("ministral", {"layer_types": TWICE[::-1]}, 4096, [1, 0, 0]),
        ("ministral", {"layer_types": TWICE[1:] + TWICE[:1]}, 4096, [0, 1, 0]),
        ("ministral", {"layer_types": [TWICE[2], TWICE[0], TWICE[2]]}, 4096, 2),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, 4096, [0, 1, 1]),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "layer_types": TWICE}, 7, [0, 0, 1]),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 0}, 4096, None),
        ("qwen2", {"use_sliding_window": True}, None, None),
        ("qwen2", {"sliding_window": 7}, None, None),
    ],
)
def test_windows_of_some_layers(model_type: str, more: dict[str, Any], window: int | None, freq: Any) -> None:
    config, family = {**LLAMA, "num_hidden_layers": 3, **more}, family_of_type(model_type)
    model = job_of(to_model(config, family)).model
    assert (model.sliding_window, model.window_attn_skip_freq) == (window, freq)
    again = job_of(to_model(to_config(model, family, 256), family)).model
    assert (again.sliding_window, again.windowed_layers) == (window, model.windowed_layers)


def test_positions_of_published_and_of_newer_files() -> None:
    """Gemma 3's two kinds, as files of either version say them."""
    config = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 6}
    family = family_of_type("gemma3_text")
    linear = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": linear, "_sliding_window_pattern": 6}
    new = {"full_attention": {**linear, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    types = [*["sliding_attention"] * 5, "full_attention"]
    found = [to_model({**config, **each}, family) for each in (old, {"rope_parameters": new, "layer_types": types})]
    assert found[0] == found[1]
    names = ("rotary_base", "rotary_base_local", "window_attn_skip_freq")
    assert [found[0][name] for name in names] == [1000000, 10000, 6]
    every = to_model({**config, "layer_types": ["full_attention"] * 6, "sliding_window": None}, family)
    assert not every.keys() & {"rotary_base_local", "sliding_window", "window_attn_skip_freq"}


def test_rotary_positions_of_gpt_neox() -> None:
    """As published files say them, and as newer ones."""
    family = family_of_type("gpt_neox")
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    parameters = {"rope_type": "default", "rope_theta": 5000, "partial_rotary_factor": 0.5}
    old = to_model({**config, "rotary_emb_base": 5000, "rotary_pct": 0.5}, family)
    assert old == to_model({**config, "rope_parameters": parameters}, family)
    assert (old["rotary_base"], old["rotary_percent"]) == (5000, 0.5)
    assert to_model(config, family)["rotary_percent"] == 0.25
    written = to_config(job_of(old).model, family, 256)
    assert (written["rotary_emb_base"], written["rotary_pct"]) == (5000, 0.5)


@pytest.mark.parametrize(("activation", "ours"), [("gelu", "gelu"), ("gelu_fast", "gelu_tanh")])
def test_a_sequential_gpt_neox(activation: str, ours: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"} | {"hidden_size": 32}
    family = family_of_type("gpt_neox")
    model = job_of(to_model({**config, "use_parallel_residual": False, "hidden_act": activation}, family)).model
    assert (model.parallel_residual, model.activation) == (None, ours)
    assert to_config(model, family_of_model(model), 256)["use_parallel_residual"] is False


FALCON = {
    **{"vocab_size": 256, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 4},
    "model_type": "falcon",
}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}


def _falcon(norms: str) -> Family:
    return next(
        each
        for each in families()
        if each.model_type == FALCON["model_type"] and each.fixed["parallel_residual"] == norms
    )


@pytest.mark.parametrize(
    ("more", "norms", "found"),
    [
        ({}, "one_norm", (1, 64)),
        ({"multi_query": False, "ffn_hidden_size": 24}, "one_norm", (4, 24)),
        ({**NEW, "num_ln_in_parallel_attn": 1}, "one_norm", (2, 64)),
        (NEW, "two_norms", (2, 64)),
        ({**NEW, "num_ln_in_parallel_attn": 2, "num_kv_heads": None}, "two_norms", (4, 64)),
    ],
)
def test_a_falcon(more: dict[str, Any], norms: str, found: tuple[int, int]) -> None:
    """Of 7B's architecture, and of 40B's with either number of norms."""
    family = _falcon(norms)
    model = job_of(to_model({**FALCON, **more}, family)).model
    assert (model.query_groups, model.ffn_size) == found
    assert family_of_model(model) is family


@pytest.mark.parametrize(
    ("more", "norms", "refusal"),
    [
        ({"num_ln_in_parallel_attn": 2}, "one_norm", ("num_ln_in_parallel_attn", "2")),
        (NEW, "one_norm", ("num_ln_in_parallel_attn", "2")),
        ({**NEW, "num_ln_in_parallel_attn": 1}, "two_norms", ("num_ln_in_parallel_attn", "1")),
        ({}, "two_norms", ("new_decoder_architecture", "false")),
    ],
)
def test_a_falcon_with_other_norms_than_its_weights(more: dict[str, Any], norms: str, refusal: tuple[str, ...]) -> None:
    family = _falcon(norms)
    with refused("unsupported_config_value", *refusal):
        to_model({**FALCON, **more}, family)


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"moe_layer_freq": 2}, ("network_not_exportable", "model.moe_layer_freq", "Mixtral")),
        (
            {"moe_router_pre_softmax": True},
            ("network_not_exportable", "model.moe_router_pre_softmax", "true", "Mixtral"),
        ),
        (
            {"moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": 0},
            ("network_not_exportable", "sinkhorn", "Mixtral", "aux_loss", "seq_aux_loss"),
        ),
        ({"moe_expert_capacity_factor": 1.5}, ("network_not_exportable", "1.5", "Mixtral")),
    ],
)
def test_other_experts_are_refused(more: dict[str, Any], refusal: tuple[str, ...]) -> None:
    with refused(*refusal):
        family_of_model(job_of({"preset": "mixtral-8x7b", **more}).model)


def test_a_shared_expert_makes_another_family() -> None:
    """That of Granite, whose factors are 1."""
    model = job_of({"preset": "mixtral-8x7b", "moe_shared_expert_intermediate_size": 64}).model
    assert family_of_model(model).model_type == "granitemoeshared"


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


def test_positions_of_roberta_begin_behind_padding() -> None:
    """Published sizes say 514, of which the first two are of no token."""
    config = {"model_type": "roberta", "vocab_size": 256, "type_vocab_size": 1, "max_position_embeddings": 514}
    family = family_of_type("roberta")
    model = job_of(to_model(config, family)).model
    assert (model.seq_length, model.positions, model.position_embedding_offset) == (512, 514, 2)
    written = to_config(model, family_of_model(model), 256)
    assert (written["max_position_embeddings"], written["pad_token_id"]) == (514, 1)
    assert to_model({**config, "pad_token_id": 0}, family)["seq_length"] == 513


def test_a_bert_without_types_is_refused() -> None:
    model = {"preset": "bert-base", "bert_binary_head": False}
    with refused("network_not_exportable", "BERT that predicts", "model.num_tokentypes", "none"):
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


@pytest.mark.parametrize("preset", ["glm4.5-air", "deepseek-v2-lite", "deepseek-v3"])
def test_no_factor_of_routed_experts_is_written_as_one(preset: str) -> None:
    """transformers multiplies by it."""
    model = job_of({"preset": preset, "moe_router_topk_scaling_factor": None}).model
    assert to_config(model, family_of_model(model), 100)["routed_scaling_factor"] == 1.0


@pytest.mark.parametrize(
    "more", [{"mtp_num_layers": 2}, {"mtp_num_layers": 1, "moe_layer_freq": [0, *[1] * 47], "ffn_hidden_size": 5632}]
)
def test_qwen3_next_has_one_layer_of_further_tokens(more: dict[str, Any]) -> None:
    """Whose kind is that of its first layer, and of the last one here."""
    preset = {"preset": "qwen3-next-80b-a3b"}
    model = job_of({**preset, "mtp_num_layers": 1}).model
    assert to_config(model, family_of_model(model), 100)["num_nextn_predict_layers"] == 1
    assert "num_nextn_predict_layers" not in to_config(job_of(preset).model, family_of_model(model), 100)
    with refused("network_not_exportable", "Qwen3-Next", "model.mtp_num_layers"):
        family_of_model(job_of({**preset, **more}).model)


def test_weights_that_were_to_start_without_spread() -> None:
    assert "init_method_std" not in to_model({**LLAMA, "initializer_range": 0.0}, family_of_type("llama"))


@pytest.mark.parametrize(
    ("text", "code"), [(None, "missing_config"), ("{", "unreadable_config"), ("[]", "not_a_json_object")]
)
def test_a_folder_that_is_no_model(tmp_path: Path, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with refused(code, "config.json"):
        read_config(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=3,
)
MORE = st.sampled_from(families()).flatmap(
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
