"""Every key of a config.json is read, known to change nothing, or refused by name."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.cli.main import main
from orchestrator.conversion.hugging_face.config_keys import NEUTRAL, WITHOUT_EFFECT
from orchestrator.conversion.hugging_face.configuration import keys_read, merged_rates, to_model
from orchestrator.conversion.hugging_face.families.registry import FAMILIES, family_of_folder, family_of_type
from orchestrator.conversion.hugging_face.native_resolution import KEYS_READ as NATIVE_KEYS
from orchestrator.conversion.hugging_face.vision import IGNORED, KEYS_READ
from orchestrator.conversion.weight_mapping import Family
from orchestrator.spec.loading import load_text

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

SIZES = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
HEADS = {"head_dim": 128}
"""Of a class without a default, whose hidden size is no multiple of the heads."""
LAYERS = {"layers_block_type": ["linear_attention", "mlp", "full_attention"]}
"""Of one whose default has experts."""
WIDTH = {"vision_config": {"out_hidden_size": 8192}}
"""Of one whose default encoder gives other vectors than its default decoder takes."""
GIVEN = {"glm4_moe": HEADS, "nemotron_h": LAYERS, "qwen2_5_vl": WIDTH}
NEW_FALCON = {"new_decoder_architecture": True}
"""Of the class for both of Falcon's architectures."""
BY_NAME = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name.replace(" ", "-"))


def configuration(family: Family, **more: Any) -> Any:
    """The class of transformers with its defaults, and with what alone is imported of one."""
    if family.decoder is not None:
        more["text_config"] = configuration(family.decoder)
    more |= GIVEN.get(family.model_type, {})
    if "new_decoder_architecture" in family.constants:
        more |= NEW_FALCON
    if "first_k_dense_replace" in family.aliases:  # has no experts
        more["first_k_dense_replace"] = transformers.CONFIG_MAPPING[family.model_type]().num_hidden_layers
    return transformers.CONFIG_MAPPING[family.model_type](**more)


def default(family: Family) -> dict[str, Any]:
    """The config.json of that."""
    found: dict[str, Any] = json.loads(configuration(family).to_json_string(use_diff=False))
    return found


@functools.cache
def defaults() -> dict[str, dict[str, Any]]:
    """Those of all families, by name. Not made at import: every worker of the tests imports this."""
    return {family.name: default(family) for family in FAMILIES}


def attributes(config: Any) -> set[str]:
    fields = {field.name for field in dataclasses.fields(config)}
    written = vars(config).keys() - {"ignore_keys_at_rope_validation"}  # is set while it checks, and left out of files
    return {*config.to_dict(), *written, *fields, *type(config).attribute_map}


@BY_NAME
def test_every_attribute_of_the_class_is_known(family: Family) -> None:
    config = configuration(family)
    known = WITHOUT_EFFECT | NEUTRAL.keys()
    assert attributes(config) - known - keys_read(family) - family.ignored == set()
    if family.decoder is not None:
        read = KEYS_READ | IGNORED if family.seeing is None else NATIVE_KEYS
        assert attributes(config.vision_config) - known - read == {"model_type"} - known
    pairs = {frozenset(pair) for pair in type(config).attribute_map.items()}
    assert pairs - {frozenset(pair) for pair in family.aliases.items()} <= {
        frozenset(("image_token_id", "image_token_index"))
    }


def test_what_generates_is_without_effect() -> None:
    assert {*transformers.GenerationConfig().to_dict()} <= WITHOUT_EFFECT


@BY_NAME
def test_no_key_has_two_meanings(family: Family) -> None:
    """What is read somewhere changes something, and those that are written out are read."""
    assert WITHOUT_EFFECT.isdisjoint(NEUTRAL)
    read = {"initializer_range"}  # to train on
    if family.model_type == "roberta":  # whose positions begin behind that of padding
        read |= {"pad_token_id"}
    assert WITHOUT_EFFECT & (keys_read(family) | family.ignored) <= read
    assert family.ignored.isdisjoint(keys_read(family))


@BY_NAME
def test_what_is_left_out_is_as_in_transformers(family: Family) -> None:
    full = default(family)
    if family.decoder is not None:
        small: dict[str, Any] = {"text_config": {"model_type": family.decoder.model_type}}
    else:
        small = {key: full[key] for field in SIZES if (key := family.sizes.get(field)) and full[key]}
        small["vocab_size"] = full["vocab_size"]
    small |= GIVEN.get(family.model_type, {})
    if "new_decoder_architecture" in family.constants:
        small |= NEW_FALCON
    left_out, said = (resolved(to_model(config, family)) for config in (small, full))
    assert left_out == said


def resolved(model: dict[str, Any]) -> dict[str, Any]:
    document = {"model": model, "batch": {"global_batch_size": 8}, "optimizer": {"lr": 1e-5}}
    more = {"name": "imported", "data": {"random_tokens": True}, "schedule": {"train_iters": 1}}
    spec = load_text(json.dumps({**document, **more})).job.model
    same = {"num_query_groups": spec.query_groups, "kv_channels": spec.head_dim, "ffn_hidden_size": spec.ffn_size}
    return {**spec.model_dump(), **same}


KEYS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12) | st.sampled_from(
    ["attention_sinks", "layer_scale", "rope_local_base_freq", "attention_chunk_size", "is_causal", "auto_map"]
)
VALUES = st.none() | st.booleans() | st.integers(0, 3) | st.floats(allow_nan=False) | st.just({}) | st.just([1])


@given(
    st.sampled_from(FAMILIES), KEYS, VALUES, st.sampled_from(["", "text_config", "vision_config", "rope_parameters"])
)
def test_an_unknown_key_is_refused_by_name(family: Family, key: str, value: Any, place: str) -> None:
    config = copy.deepcopy(defaults()[family.name])
    part = config.get(place, config)
    known = part.keys() | keys_read(family) | family.ignored | WITHOUT_EFFECT | NEUTRAL.keys()
    known |= keys_read(family.decoder) | family.decoder.ignored | KEYS_READ | IGNORED if family.decoder else set()
    if key in known or (part is config.get("rope_parameters") and value is None):
        return
    part[key] = value
    with refused(
        ("unknown_rope_keys" if place == "rope_parameters" and part is not config else "unknown_config_keys"), key
    ):
        to_model(config, family)


@pytest.mark.parametrize(
    ("model_type", "more", "refusal"),
    [
        (
            "mistral",
            {"layer_types": ["sliding_attention", "full_attention"]},
            ("unsupported_layer_types", "layer_types"),
        ),
        ("mistral", {"layer_types": ["full_attention"] * 32}, ("unsupported_layer_types", "layer_types")),
        (
            "mistral",
            {"sliding_window": None, "layer_types": ["sliding_attention"] * 32},
            ("unsupported_layer_types", "layer_types"),
        ),
        ("mistral", {"layer_types": "full_attention"}, ("unsupported_layer_types", "layer_types")),
        ("qwen3", {"layer_types": ["sliding_attention"] * 32}, ("unsupported_config_value", "layer_types")),
        ("llama", {"sliding_window": 64}, ("unsupported_config_value", "sliding_window", 64)),
        ("llama", {"partial_rotary_factor": 0.5}, ("unsupported_config_value", "partial_rotary_factor", 0.5)),
        ("llama", {"rope_parameters": {"rope_type": "default", "factor": 4.0}}, ("unknown_rope_keys", "factor")),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            ("conflicting_config_values", "rope_scaling", "rope_parameters"),
        ),
        (
            "llama",
            {"per_layer_config": {"0": {"num_key_value_heads": 1}}},
            ("unsupported_config_value", "per_layer_config"),
        ),
        ("gpt2", {"pruned_heads": {"0": [1]}}, ("unsupported_config_value", "pruned_heads")),
        ("gpt2", {"num_hidden_layers": 5}, ("conflicting_config_values", "num_hidden_layers", "n_layer")),
        ("mixtral", {"num_experts": 4}, ("conflicting_config_values", "num_experts", "num_local_experts")),
        ("t5", {"dense_act_fn": "gelu_new"}, ("unsupported_config_value", "dense_act_fn")),
        (
            "t5",
            {"feed_forward_proj": "gated-gelu", "is_gated_act": False},
            ("unsupported_config_value", "is_gated_act"),
        ),
        (
            "gemma",
            {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"},
            ("unsupported_config_value", "hidden_act", "silu"),
        ),
        ("mt5", {"scale_decoder_outputs": True}, ("unknown_config_keys", "scale_decoder_outputs")),
        ("bert", {"embedding_size": 128}, ("unknown_config_keys", "embedding_size")),
        ("mamba2", {"conv_kernel": 3}, ("unsupported_config_value", "conv_kernel", "3")),
        ("mamba2", {"use_conv_bias": False}, ("unsupported_config_value", "use_conv_bias", "false")),
        ("mamba2", {"use_bias": True}, ("unsupported_config_value", "use_bias", "true")),
        ("mamba2", {"layer_norm_epsilon": 1e-6}, ("unsupported_config_value", "layer_norm_epsilon")),
        ("mamba2", {"hidden_act": "gelu"}, ("unsupported_config_value", "hidden_act", "gelu")),
        ("mamba2", {"expand": 3}, ("unsupported_config_value", "expand", "3")),
        ("mamba2", {"time_step_limit": [0.0, 0.1]}, ("unsupported_config_value", "time_step_limit")),
        ("nemotron_h", {"layers_block_type": ["moe"]}, ("unsupported_config_value", "layers_block_type", "moe")),
        (
            "nemotron_h",
            {"layers_block_type": None, "hybrid_override_pattern": "ME*"},
            ("unsupported_config_value", "hybrid_override_pattern", "ME*"),
        ),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "MMM"},
            ("unsupported_config_value", "hybrid_override_pattern", "MMM"),
        ),
        ("nemotron_h", {"tie_word_embeddings": True}, ("unsupported_config_value", "tie_word_embeddings", "true")),
        ("nemotron_h", {"num_hidden_layers": 4}, ("unsupported_config_value", "num_hidden_layers", "4")),
        ("nemotron_h", {"num_nextn_predict_layers": 1}, ("unsupported_config_value", "num_nextn_predict_layers", "1")),
        ("nemotron_h", {"mamba_proj_bias": True}, ("unsupported_config_value", "mamba_proj_bias", "true")),
        ("nemotron_h", {"attention_head_dim": 64}, ("conflicting_config_values", "attention_head_dim", "head_dim")),
        ("nemotron_h", {"mamba_n_groups": 4}, ("unknown_config_keys", "mamba_n_groups")),
        ("llava", {"mm_vision_tower": "clip"}, ("unknown_config_keys", "mm_vision_tower")),
    ],
)
def test_what_makes_another_network_is_refused(model_type: str, more: dict[str, Any], refusal: tuple[str, ...]) -> None:
    family = family_of_type(model_type)
    with refused(*refusal):
        to_model({**defaults()[family.name], **more}, family)


@pytest.mark.parametrize(
    ("model_type", "renamed"),
    [
        ("gpt2", {"n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_positions": "max_position_embeddings"}),
        ("t5", {"num_layers": "num_hidden_layers", "d_kv": "head_dim"}),
        ("mixtral", {"num_local_experts": "num_experts"}),
    ],
)
def test_the_other_names_of_a_key(model_type: str, renamed: dict[str, str]) -> None:
    family = family_of_type(model_type)
    config = {renamed.get(key, key): value for key, value in defaults()[family.name].items()}
    assert to_model(config, family) == to_model(defaults()[family.name], family)


PUBLISHED: dict[str, dict[str, Any]] = {
    "flan-t5": {
        **{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64},
        **{"d_model": 768, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1},
        **{"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True, "n_positions": 512},
        **{"is_encoder_decoder": True, "layer_norm_epsilon": 1e-6, "num_decoder_layers": 12, "num_heads": 12},
        **{"num_layers": 12, "output_past": True, "pad_token_id": 0, "relative_attention_max_distance": 128},
        **{"relative_attention_num_buckets": 32, "task_specific_params": {"summarization": {"num_beams": 4}}},
        **{"tie_word_embeddings": False, "torch_dtype": "float32", "initializer_factor": 1.0, "vocab_size": 32128},
    },
    "gpt2": {
        **{"activation_function": "gelu_new", "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1},
        **{"eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "model_type": "gpt2"},
        **{"n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1},
        **{"summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True},
        **{"summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257, "_num_labels": 1},
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "bert-base-multilingual": {
        **{"model_type": "bert", "attention_probs_dropout_prob": 0.1, "directionality": "bidi", "hidden_act": "gelu"},
        **{"hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072},
        **{"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "num_attention_heads": 12, "pad_token_id": 0},
        **{"num_hidden_layers": 12, "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "type_vocab_size": 2},
        **{"pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform"},
        **{"position_embedding_type": "absolute", "gradient_checkpointing": False, "vocab_size": 119547},
    },
    "deepseek-r1-distill-qwen": {
        **{"model_type": "qwen2", "attention_dropout": 0.0, "bos_token_id": 151646, "eos_token_id": 151643},
        **{"hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944},
        **{"max_position_embeddings": 131072, "max_window_layers": 28, "num_attention_heads": 28, "rope_theta": 10000},
        **{"num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "sliding_window": 4096},
        **{"tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_mrope": False, "use_sliding_window": False},
        **{"transformers_version": "4.44.0", "use_cache": True, "vocab_size": 152064},
    },
    "mamba2-130m-hf": {
        **{"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "bos_token_id": 0, "chunk_size": 256},
        **{"conv_kernel": 4, "eos_token_id": 0, "expand": 2, "head_dim": 64, "hidden_act": "silu", "hidden_size": 768},
        **{"initializer_range": 0.1, "layer_norm_epsilon": 1e-5, "n_groups": 1, "num_heads": 24, "pad_token_id": 0},
        **{"num_hidden_layers": 24, "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True},
        **{"state_size": 128, "tie_word_embeddings": True, "time_step_floor": 1e-4, "time_step_max": 0.1},
        **{"time_step_limit": [0.0, float("inf")], "time_step_min": 0.001, "time_step_rank": 48, "use_bias": False},
        **{"norm_before_gate": True, "torch_dtype": "float32", "use_cache": True, "use_conv_bias": True},
        "vocab_size": 50288,
    },
    "nemotron-h-8b": {
        **{"model_type": "nemotron_h", "attention_bias": False, "attention_head_dim": 128, "attention_dropout": 0.0},
        **{"auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"}, "chunk_size": 128, "expand": 2},
        **{"conv_kernel": 4, "hidden_dropout": 0.0, "hidden_size": 4096, "initializer_range": 0.02},
        **{"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "vocab_size": 131072},
        **{"intermediate_size": 21504, "layer_norm_epsilon": 1e-5, "mamba_head_dim": 64, "mamba_hidden_act": "silu"},
        **{"mamba_num_heads": 128, "mamba_proj_bias": False, "max_position_embeddings": 8192, "mlp_bias": False},
        **{"mlp_hidden_act": "relu2", "n_groups": 8, "num_attention_heads": 32, "num_hidden_layers": 52},
        **{"num_key_value_heads": 8, "num_logits_to_keep": 1, "rescale_prenorm_residual": True, "rms_norm_eps": 1e-5},
        **{"residual_in_fp32": False, "sliding_window": None, "ssm_state_size": 128, "tie_word_embeddings": False},
        **{"time_step_floor": 1e-4, "time_step_limit": [0.0, float("inf")], "time_step_max": 0.1, "use_bias": False},
        **{"time_step_min": 0.001, "time_step_rank": 256, "use_conv_bias": True, "use_mamba_kernels": True},
    },
    "smollm2": {
        **{"model_type": "llama", "attention_bias": False, "bos_token_id": 0, "hidden_act": "silu", "hidden_size": 576},
        **{"initializer_range": 0.04, "intermediate_size": 1536, "is_llama_config": True, "mlp_bias": False},
        **{"max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30, "rope_scaling": None},
        **{"num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_interleaved": False},
        **{"rope_theta": 100000, "tie_word_embeddings": True, "transformers.js_config": {"dtype": "q4"}},
        **{"use_cache": True, "vocab_size": 49152},
    },
    "gpt-oss-20b": {
        **{"model_type": "gpt_oss", "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002},
        **{"experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "pad_token_id": 199999},
        **{"initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880, "use_cache": True},
        **{"layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072},
        **{"num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8},
        **{"num_local_experts": 32, "output_router_logits": False, "rms_norm_eps": 1e-5, "rope_theta": 150000},
        **{"router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False},
        **{"transformers_version": "4.55.0.dev0", "vocab_size": 201088},
        "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
        "rope_scaling": {
            **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096},
            **{"rope_type": "yarn", "truncate": False},
        },
    },
    "llava-1.5": {
        **{"model_type": "llava", "ignore_index": -100, "image_token_index": 32000, "pad_token_id": 32001},
        **{"projector_hidden_act": "gelu", "tie_word_embeddings": False, "vision_feature_layer": -2},
        **{"vision_feature_select_strategy": "default", "vocab_size": 32064},
        "text_config": {
            **{"_name_or_path": "lmsys/vicuna-7b-v1.5", "max_position_embeddings": 4096, "model_type": "llama"},
            **{"rms_norm_eps": 1e-5, "torch_dtype": "float16", "vocab_size": 32064, "top_k": 50, "pruned_heads": {}},
        },
        "vision_config": {
            **{"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model"},
            **{"num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768},
            **{"vocab_size": 32000, "dropout": 0.0, "torchscript": False},
        },
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read(name: str) -> None:
    config = PUBLISHED[name]
    assert to_model(config, family_of_type(config["model_type"]))["vocab_size"] > 30000


TINY = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mistral": (
        {**TINY, "num_key_value_heads": 2, "sliding_window": 3},
        {"layer_types": ["sliding_attention"] * 2, "use_cache": False, "temperature": 0.5},
    ),
    "llama": (TINY, {"pretraining_tp": 2, "initializer_range": 0.5, "chunk_size_feed_forward": 2}),
    "qwen2": (
        {**TINY, "num_key_value_heads": 2},
        {"sliding_window": 2, "max_window_layers": 0, "layer_types": ["full_attention"] * 2},
    ),
    "gpt2": (
        {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2},
        {"reorder_and_upcast_attn": True, "n_ctx": 4, "summary_type": "mean", "summary_use_proj": False},
    ),
    "bert": (TINY, {"classifier_dropout": 0.5, "directionality": "bidi", "pooler_type": "mean", "pooler_fc_size": 3}),
    "t5": (
        {"vocab_size": 32, "d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 8, "d_ff": 24},
        {"initializer_factor": 3.0, "n_positions": 4, "is_gated_act": False, "dense_act_fn": "relu"},
    ),
}


@pytest.mark.parametrize("model_type", NETWORKS)
def test_what_changes_nothing_changes_nothing_in_transformers(model_type: str, tmp_path: Path) -> None:
    """Bitwise the same from the same weights, and the same network here."""
    sizes, more = NETWORKS[model_type]
    family = family_of_type(model_type)
    config = transformers.CONFIG_MAPPING[model_type](**sizes)
    torch.manual_seed(1)
    model = auto(config).from_config(config).eval()
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    expected = computed(model)
    (tmp_path / "config.json").write_text(json.dumps({**written, **more}))
    again = computed(auto(config).from_pretrained(tmp_path).eval())
    assert torch.equal(again, expected)
    unlike = to_model({**written, **more}, family).items() ^ to_model(written, family).items()
    assert {field for field, _ in unlike} <= {"init_method_std"}


def auto(config: Any) -> Any:
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForPreTraining if config.model_type == "bert" else transformers.AutoModelForCausalLM


def computed(model: Any) -> torch.Tensor:
    ids = torch.arange(16).reshape(2, 8) % 32
    with torch.no_grad():
        more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        found: torch.Tensor = model(ids, **more)[0]
    return found


def test_the_command_refuses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**defaults()["Mistral"], "attention_sinks": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert family_of_folder(tmp_path).name == "Mistral"
    assert main(["checkpoint", "import", str(tmp_path), "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "attention_sinks" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("said", [{}, {"embd_pdrop": 0.0}, {"resid_pdrop": 0.3}, {"embd_pdrop": 0.0, "resid_pdrop": 0}])
def test_two_dropouts_become_one_aloud(said: dict[str, float]) -> None:
    """Where transformers would train with two, whichever of them the file leaves out."""
    config = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, **said}
    theirs = transformers.GPT2Config(**config)
    family = family_of_type("gpt2")
    notes = list(merged_rates(config, family))
    assert bool(notes) is (theirs.embd_pdrop != theirs.resid_pdrop)
    assert not notes or "model.hidden_dropout" in notes[0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_nothing_is_said_of_published_files(name: str) -> None:
    assert not list(merged_rates(PUBLISHED[name], family_of_type(PUBLISHED[name]["model_type"])))


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **PUBLISHED["gpt2"], "embd_pdrop": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["checkpoint", "import", str(tmp_path), "--name", "no name", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "embd_pdrop" in capsys.readouterr().err
