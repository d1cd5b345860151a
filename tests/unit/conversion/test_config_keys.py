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
from orchestrator.conversion.hugging_face.config_json import import_notes, keys_read, to_model
from orchestrator.conversion.hugging_face.config_keys import NEUTRAL, WITHOUT_EFFECT
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.families.registry import families, family_of_type
from orchestrator.conversion.hugging_face.images.native_resolution import KEYS_READ as NATIVE_KEYS
from orchestrator.conversion.hugging_face.images.vision import CLIP, KEYS_READ, SIGLIP
from orchestrator.conversion.weight_mapping import Family
from orchestrator.spec.loading import load_text
from tests.unit.conversion.published_configurations import PUBLISHED

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
SQUARES = {"vision_config": {"model_type": "siglip_vision_model", "image_size": 256}}
"""Of one whose default has no whole number of patches in a token."""
WITH_EXPERTS = {"layers_block_type": ["linear_attention", "moe", "full_attention"]}
GIVEN = {"glm4_moe": HEADS, "nemotron_h": LAYERS, "Nemotron 3": WITH_EXPERTS, "gemma3": SQUARES, "qwen2_5_vl": WIDTH}
SECOND = ("new_decoder_architecture", "use_parallel_residual")
"""Keys that are true of one of the families of a class, Falcon's or StableLM's."""
BY_NAME = pytest.mark.parametrize("family", families(), ids=lambda family: family.name.replace(" ", "-"))


def made_with(family: Family) -> dict[str, Any]:
    return GIVEN.get(family.name, GIVEN.get(family.model_type, {}))


def family_of(model_type: str, pattern: str = "") -> Family:
    """That of a config.json, whose weights tell whether a hybrid has experts."""
    names = ("backbone.norm_f.weight", *(["backbone.layers.1.mixer.gate.weight"] if "E" in pattern else []))
    return family_of_type(model_type, names if model_type == "nemotron_h" else ())


def configuration(family: Family, **more: Any) -> Any:
    """The class of transformers with its defaults, and with what alone is imported of one."""
    if family.decoder is not None:
        more["text_config"] = configuration(family.decoder)
    more |= made_with(family)
    more |= {key: True for key in SECOND if family.constants.get(key)}
    if "first_k_dense_replace" in family.aliases:  # has no experts
        more["first_k_dense_replace"] = transformers.CONFIG_MAPPING[family.model_type]().num_hidden_layers
    return transformers.CONFIG_MAPPING[family.model_type](**more)


def default(family: Family) -> dict[str, Any]:
    """The config.json of that."""
    found: dict[str, Any] = json.loads(configuration(family).to_json_string(use_diff=False))
    return found


@functools.cache
def defaults() -> dict[tuple[str, str], dict[str, Any]]:
    """Those of all families, by name and `model_type`. Not made at import: every worker of the tests imports this."""
    return {(family.name, family.model_type): default(family) for family in families()}


def default_of(name: str) -> dict[str, Any]:
    """Those of the first family of this name."""
    return next(found for (named, _), found in defaults().items() if named == name)


def attributes(config: Any) -> set[str]:
    fields = {field.name for field in dataclasses.fields(config)}
    written = vars(config).keys() - {"ignore_keys_at_rope_validation"}  # is set while it checks, and left out of files
    return {*config.to_dict(), *written, *fields, *type(config).attribute_map}


@BY_NAME
def test_every_attribute_of_the_class_is_known(family: Family) -> None:
    config = configuration(family)
    known = WITHOUT_EFFECT | NEUTRAL.keys()
    assert attributes(config) - known - keys_read(family) - family.ignored == set()
    if family.images is not None:
        known_of = {each.model_type: KEYS_READ | each.ignored for each in (CLIP, SIGLIP)}
        read = known_of.get(config.vision_config.model_type, NATIVE_KEYS)
        assert attributes(config.vision_config) - known - read == {"model_type"} - known
    pairs = {frozenset(pair) for pair in type(config).attribute_map.items()}
    assert pairs - {frozenset(pair) for pair in family.aliases.items()} <= {
        frozenset((f"{token}_id", f"{token}_index")) for token in ("image_token", "boi_token", "eoi_token")
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
    small |= made_with(family)
    small |= {key: True for key in SECOND if family.constants.get(key)}
    left_out, said = (resolved(to_model(config, family)) for config in (small, full))
    assert left_out == said


def resolved(model: dict[str, Any]) -> dict[str, Any]:
    document = {"model": model, "batch": {"global_batch_size": 8}, "optimizer": {"lr": 1e-5}}
    more = {"name": "imported", "data": {"random_tokens": True}, "schedule": {"train_iters": 1}}
    spec = load_text(json.dumps({**document, **more})).job.model
    same = {"num_query_groups": spec.query_groups, "kv_channels": spec.head_dim, "ffn_hidden_size": spec.ffn_size}
    return {**spec.model_dump(), **same}


KEYS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12) | st.sampled_from(
    ["attention_sinks", "layer_scale", "rope_local_base_freq", "attention_chunk_size", "is_causal"]
)
VALUES = st.none() | st.booleans() | st.integers(0, 3) | st.floats(allow_nan=False) | st.just({}) | st.just([1])


@given(
    st.sampled_from(families()), KEYS, VALUES, st.sampled_from(["", "text_config", "vision_config", "rope_parameters"])
)
def test_an_unknown_key_is_refused_by_name(family: Family, key: str, value: Any, place: str) -> None:
    config = copy.deepcopy(defaults()[family.name, family.model_type])
    if family.text_part is not None and place == family.text_part.left_out:
        return
    part = config.get(place, config)
    known = part.keys() | keys_read(family) | family.ignored | WITHOUT_EFFECT | NEUTRAL.keys()
    if family.decoder is not None:
        known |= keys_read(family.decoder) | family.decoder.ignored | KEYS_READ | CLIP.ignored | SIGLIP.ignored
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
    family = family_of(model_type)
    with refused(*refusal):
        to_model({**defaults()[family.name, family.model_type], **more}, family)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"moe_latent_size": 64}, ("moe_latent_size", "64")),
        ({"n_shared_experts": 2}, ("n_shared_experts", "2")),
        ({"moe_shared_expert_intermediate_size": None}, ("moe_shared_expert_intermediate_size", "null")),
        ({"norm_topk_prob": False}, ("norm_topk_prob", "false")),
        ({"layers_block_type": ["linear_attention", "mlp"]}, ("layers_block_type", "mlp")),
        ({"norm_eps": 1e-6, "layer_norm_epsilon": 1e-6}, ("layer_norm_epsilon", "1e-06")),
    ],
)
def test_experts_of_another_hybrid_are_refused(more: dict[str, Any], named: tuple[str, ...]) -> None:
    family = family_of("nemotron_h", "ME*")
    with refused("unsupported_config_value", *named):
        to_model({**defaults()[family.name, family.model_type], **more}, family)


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
    config = {renamed.get(key, key): value for key, value in defaults()[family.name, family.model_type].items()}
    assert to_model(config, family) == to_model(defaults()[family.name, family.model_type], family)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read(name: str) -> None:
    config = PUBLISHED[name]
    family = family_of(config["model_type"], config.get("hybrid_override_pattern", ""))
    assert to_model(config, family)["vocab_size"] > 30000


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
    "modernbert": (
        {**TINY, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))},
        {"sparse_prediction": True, "classifier_pooling": "mean", "layer_norm_eps": 1.0, "reference_compile": True},
    ),
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
    if config.model_type == "modernbert":
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModelForPreTraining if config.model_type == "bert" else transformers.AutoModelForCausalLM


def computed(model: Any) -> torch.Tensor:
    ids = torch.arange(16).reshape(2, 8) % 32
    with torch.no_grad():
        more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        found: torch.Tensor = model(ids, **more)[0]
    return found


def test_the_command_refuses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**defaults()["Mistral", "mistral"], "attention_sinks": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert family_of_folder(tmp_path).name == "Mistral"
    assert main(["checkpoint", "import", str(tmp_path), "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "attention_sinks" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


LONGROPE = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 1, "beta_slow": 2}
"""Whose frequencies are in no order."""


@pytest.mark.parametrize(
    ("family", "more", "said"),
    [
        ("Mixtral", {"num_experts_per_tok": 1}, "num_experts_per_tok is 1, "),
        ("gpt-oss", {"num_experts_per_tok": 1, "experts_per_token": 1}, "and experts_per_token is 1, "),
        ("Granite with experts", {"num_experts_per_tok": 1}, "num_experts_per_tok is 1, "),
        ("Qwen 3 with experts", {"num_experts_per_tok": 1, "norm_topk_prob": True}, "1 and norm_topk_prob is true, "),
        ("Mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9 and num_local_experts is 8, "),
        ("GLM-4", {"rope_parameters": None, "partial_rotary_factor": 0.01}, "partial_rotary_factor = 128 · 0.01"),
        (
            "Phi-3",
            {"rope_parameters": None, "rope_scaling": {**LONGROPE, "long_factor": [1.0] * 47}},
            "long_factor needs a number for each of the 48",
        ),
        ("Phi-3", {"rope_parameters": None, "rope_scaling": {**LONGROPE, "short_factor": "x"}}, '"short_factor": "x"'),
        (
            "Phi-3",
            {"rope_parameters": None, "rope_scaling": LONGROPE, "partial_rotary_factor": 0.75},
            "long_factor needs a number for each of the 36",
        ),
        (
            "Phi-3",
            {"rope_parameters": None, "rope_scaling": LONGROPE, "original_max_position_embeddings": "x"},
            'max_position_embeddings is "x"',
        ),
        (
            "Phi-3",
            {"rope_parameters": None, "rope_scaling": LONGROPE, "max_position_embeddings": 10**400},
            "max_position_embeddings is 1000",
        ),
        ("SmolLM3", {"rope_parameters": None, "rope_scaling": YARN}, '"yarn", "factor": 4.0, "original_max_po'),
        ("Gemma 3", {"rope_parameters": {"full_attention": YARN}}, 'rope_parameters is {"full_attention": {"rope'),
        ("Qwen3-Next", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size is 0, "),
        ("LLaVA", {"text_config": {"model_type": "llama", "rms_norm_eps": -1}}, "rms_norm_eps of text_config is -1, "),
    ],
)
def test_the_command_names_keys_of_the_file(
    family: str, more: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a network that a rule of ours keeps out, and no field or line of a job that nobody has written."""
    (tmp_path / "config.json").write_text(json.dumps({**default_of(family), **more}))
    assert main(["checkpoint", "import", str(tmp_path), "--runs-dir", str(tmp_path / "runs")]) == 2
    told = capsys.readouterr().err
    assert "config.json: " in told
    assert said in told
    assert "the job made of" not in told
    assert "moe_router" not in told


@pytest.mark.parametrize("said", [{}, {"embd_pdrop": 0.0}, {"resid_pdrop": 0.3}, {"embd_pdrop": 0.0, "resid_pdrop": 0}])
def test_two_dropouts_become_one_aloud(said: dict[str, float]) -> None:
    """Where transformers would train with two, whichever of them the file leaves out."""
    config = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, **said}
    theirs = transformers.GPT2Config(**config)
    family = family_of_type("gpt2")
    notes = list(import_notes(config, family))
    assert bool(notes) is (theirs.embd_pdrop != theirs.resid_pdrop)
    assert not notes or "model.hidden_dropout" in notes[0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_nothing_is_said_of_published_files_but_what_is_left_out(name: str) -> None:
    family = family_of_type(PUBLISHED[name]["model_type"])
    said = [note.partition(" is ")[0] for note in import_notes(PUBLISHED[name], family)]
    assert said == ([] if family.text_part is None else [f"config.json: {family.text_part.left_out}"])


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **PUBLISHED["gpt2"], "embd_pdrop": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["checkpoint", "import", str(tmp_path), "--name", "no name", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "embd_pdrop" in capsys.readouterr().err
