"""config.json of LLaVA and a model section with images, one from the other, without torch; names of its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.config_json import to_config, to_model
from orchestrator.conversion.hugging_face.families.image_models.llava import LLAVA
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.families.registry import family_of_model, nearest_family
from orchestrator.conversion.hugging_face.images.processor_files import write_processor
from orchestrator.conversion.hugging_face.images.processor_values import image_token_note, refuse_other_pixels
from orchestrator.conversion.tensors.names import SINGLE
from orchestrator.conversion.tensors.safetensors_reader import PublishedWeights
from orchestrator.spec.loading import load_text
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec

PUBLISHED: dict[str, Any] = {
    **{"architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": 32000},
    **{"model_type": "llava", "pad_token_id": 32001, "projector_hidden_act": "gelu", "torch_dtype": "float16"},
    **{"tie_word_embeddings": False, "vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
    "text_config": {
        **{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama"},
        **{"rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064},
    },
    "vision_config": {
        **{"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model"},
        **{"num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768},
        "vocab_size": 32000,
    },
}
"""LLaVA 1.5 as it is published: transformers' defaults are left out, the decoder's sizes among them."""


def model_of(config: dict[str, Any], folder: Path) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config))
    document = {
        **{"name": "imported", "model": to_model(config, family_of_folder(folder)), "data": {"random_tokens": True}},
        **{"batch": {"global_batch_size": 8}, "optimizer": {"lr": 1e-5}, "schedule": {"train_iters": 1}},
    }
    return load_text(yaml.safe_dump(document)).job.model


def test_as_it_is_published(tmp_path: Path) -> None:
    model = model_of(PUBLISHED, tmp_path)
    assert model.vision == VisionSpec(ffn_hidden_size=4096), "the others are the defaults"
    assert (model.num_layers, model.hidden_size, model.query_groups, model.ffn_size) == (32, 4096, 32, 11008)
    assert (model.vocab_size, model.positions, model.norm_epsilon) == (32064, 4096, 1e-5)
    assert model.untie_embeddings_and_output_weights
    family = family_of_model(model)
    assert family is LLAVA
    written = to_config(model, family, 32064)
    assert (written["vision_feature_layer"], written["vision_config"]["num_hidden_layers"]) == (-1, 23)
    assert written["image_seq_length"] == 576
    again = model_of(written, tmp_path)
    assert again.vision == model.vision
    assert to_config(again, family, 32064) == written


def test_without_sections(tmp_path: Path) -> None:
    """What transformers takes then is LLaVA 1.5 but for the vocabulary."""
    model = model_of({"model_type": "llava"}, tmp_path)
    assert model.vision == VisionSpec(ffn_hidden_size=4096)
    assert (model.vocab_size, model.hidden_size, model.ffn_size) == (32000, 4096, 11008)
    partly = model_of({**PUBLISHED, "vision_config": {"image_size": 64}}, tmp_path)
    assert partly.vision == VisionSpec(
        **{"image_size": 64, "patch_size": 32, "num_layers": 11, "hidden_size": 768},
        **{"num_attention_heads": 12, "ffn_hidden_size": 3072},
    )


@pytest.mark.parametrize(
    ("kind", "name", "sizes"),
    [("mistral", "LLaVA over Mistral", (8, 14336)), ("qwen2", "LLaVA over Qwen 2", (32, 22016))],
)
def test_other_decoders(kind: str, name: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    model = model_of({**PUBLISHED, "text_config": {"model_type": kind, "tie_word_embeddings": True}}, tmp_path)
    assert family_of_model(model).name == name
    assert (model.query_groups, model.ffn_size) == sizes
    assert not model.untie_embeddings_and_output_weights
    assert to_config(model, family_of_model(model), 100)["tie_word_embeddings"] is True


@pytest.mark.parametrize(("layer", "layers"), [(-2, 23), (-1, 24), (24, 24), (7, 7), (-24, 1)])
def test_the_layer_that_is_taken(layer: int, layers: int, tmp_path: Path) -> None:
    vision = model_of({**PUBLISHED, "vision_feature_layer": layer}, tmp_path).vision
    assert vision is not None
    assert vision.num_layers == layers


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"vision_feature_layer": [-2, -5]}, ("unsupported_vision_feature_layer", "vision_feature_layer", "[-2, -5]")),
        ({"vision_feature_layer": 0}, ("unsupported_vision_feature_layer", "vision_feature_layer 0", "24 layers")),
        ({"vision_feature_layer": -26}, ("unsupported_vision_feature_layer", "vision_feature_layer -26")),
        (
            {"vision_feature_select_strategy": "full"},
            ("unsupported_config_value", "vision_feature_select_strategy", "full"),
        ),
        ({"multimodal_projector_bias": False}, ("unsupported_config_value", "multimodal_projector_bias", "false")),
        ({"projector_hidden_act": "relu"}, ("unsupported_config_value", "projector_hidden_act", "relu")),
        ({"model_type": "llava_next"}, ("unsupported_model_type", "llava_next")),
        (
            {"text_config": {"model_type": "gemma2"}},
            ("unsupported_text_model", "text_config", "gemma2", "llava", "llama, mistral, "),
        ),
        ({"text_config": []}, ("config_value_not_an_object", "text_config")),
        (
            {"vision_config": {"model_type": "siglip_vision_model"}},
            ("unsupported_image_encoder", "vision_config", "siglip_vision_model"),
        ),
        (
            {"vision_config": {"hidden_act": "relu"}},
            ("unsupported_config_value", "hidden_act", "vision_config", "relu", "quick_gelu"),
        ),
        ({"vision_config": {"num_channels": 1}}, ("unsupported_config_value", "num_channels", "vision_config", "1")),
        ({"vision_config": {"image_size": [32, 64]}}, ("images_not_square", "image_size", "vision_config", "[32, 64]")),
        (
            {"vision_config": {"num_hidden_layers": None}},
            ("unsupported_config_value", "num_hidden_layers", "vision_config", "null"),
        ),
        ({"quantization_config": {}}, ("quantized_weights", "quantization_config")),
    ],
)
def test_what_cannot_be_represented_is_refused(more: dict[str, Any], refusal: tuple[str, ...], tmp_path: Path) -> None:
    with refused(*refusal):
        model_of({**PUBLISHED, **more}, tmp_path)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"position_embedding_type": "alibi"}, "model.position_embedding_type is alibi, and LLaVA has rope"),
        ({"scale_embeddings": True}, "model.scale_embeddings is true, and LLaVA has false"),
    ],
)
def test_the_nearest_has_images_too(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    model = model_of(PUBLISHED, tmp_path).model_copy(update=more)
    family, against = nearest_family(model)
    assert (family, [each.text for each in against]) == (LLAVA, [said])
    assert nearest_family(model.model_copy(update={"vision": None}))[0].decoder is None


NAMES = {
    "language_model.model.norm.weight": ("model.language_model.norm.weight",),
    "language_model.lm_head.weight": ("lm_head.weight",),
    "vision_tower.vision_model.pre_layrnorm.bias": (
        *("vision_tower.pre_layrnorm.bias", "model.vision_tower.pre_layrnorm.bias"),
        "model.vision_tower.vision_model.pre_layrnorm.bias",
    ),
    "multi_modal_projector.linear_1.weight": ("model.multi_modal_projector.linear_1.weight",),
}
"""As the first versions of transformers write them -> as others do."""


@pytest.mark.parametrize(("name", "other"), [(name, each) for name, of in NAMES.items() for each in (name, *of)])
def test_names_of_other_versions(name: str, other: str, tmp_path: Path) -> None:
    save_file({other: torch.ones(2), "vision_tower.embeddings.position_ids": torch.ones(2)}, tmp_path / SINGLE)
    assert list(PublishedWeights(tmp_path, LLAVA)) == [name]


def test_what_nothing_is_computed_with(tmp_path: Path) -> None:
    """The layers behind the one that is taken, and the norm behind them all; nothing of other models."""
    model, tower = model_of(PUBLISHED, tmp_path), "vision_tower.vision_model."
    names = [f"{tower}encoder.layers.{number}.mlp.fc1.bias" for number in ("2", "22", "23", "x")]
    names += [f"{tower}post_layernorm.bias", "language_model.model.layers.31.mlp.up_proj.weight"]
    assert [name for name in names if LLAVA.leaves_out(name, model)] == [names[2], names[4]]
    assert LLAVA.decoder is not None
    assert not any(LLAVA.decoder.leaves_out(name, model) for name in names)


PROCESSOR: dict[str, Any] = {
    **{"crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "do_convert_rgb": True, "do_resize": True},
    **{"do_normalize": True, "do_rescale": True, "image_mean": [0.48145466, 0.4578275, 0.40821073], "resample": 3},
    **{"image_std": [0.26862954, 0.26130258, 0.27577711], "rescale_factor": 1 / 255, "size": {"shortest_edge": 336}},
    "image_processor_type": "CLIPImageProcessor",
}
"""Of LLaVA 1.5, as it is published."""


@pytest.mark.parametrize(
    "more", [{}, {"size": 336, "crop_size": 336}, {"do_pad": None}, {"image_mean": [0.4815, 0.4578, 0.4082]}]
)
def test_the_published_processor_is_ours(more: dict[str, Any], tmp_path: Path) -> None:
    refuse_other_pixels(tmp_path, VisionSpec())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **more}))
    refuse_other_pixels(tmp_path, VisionSpec())


def test_what_an_export_writes_is_ours(tmp_path: Path) -> None:
    write_processor(VisionSpec(image_size=56), tmp_path)
    refuse_other_pixels(tmp_path, VisionSpec(image_size=56))
    with refused("image_preprocessing_differs", "size", "crop_size", "56"):
        refuse_other_pixels(tmp_path, VisionSpec())


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ({"image_mean": [0.485, 0.456, 0.406]}, ("image_mean", "[0.485, 0.456, 0.406]", "[0.48145466,")),
        ({"image_std": [0.5] * 3}, ("image_std", "[0.5, 0.5, 0.5]", "[0.26862954,")),
        ({"size": {"height": 336, "width": 336}}, ("size", '{"height": 336, "width": 336}', '{"shortest_edge": 336}')),
        ({"crop_size": 224}, ("crop_size", "224", '{"height": 336, "width": 336}')),
        ({"do_center_crop": False}, ("do_center_crop is false", "true")),
        ({"do_pad": True}, ("do_pad is true", "false")),
        ({"resample": 2}, ("resample is 2", "3")),
        ({"resample": 2, "do_normalize": False}, ("resample is 2", "3", "do_normalize is false")),
    ],
)
@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_other_pixels_are_refused(more: dict[str, Any], values: tuple[str, ...], file: str, tmp_path: Path) -> None:
    """Newer versions of transformers write the processor of images within that of the whole."""
    found = {**PROCESSOR, **more}
    written = found if file == "preprocessor_config.json" else {"image_processor": found}
    (tmp_path / file).write_text(json.dumps(written))
    with refused("image_preprocessing_differs", f"/{file}: ", *values):
        refuse_other_pixels(tmp_path, VisionSpec())


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"added_tokens": [{"id": 3, "content": "<s>"}, {"id": 32000, "content": "<image>"}]},
        {"added_tokens": [], "model": {"vocab": {"<image>": 32000}}},
    ],
)
def test_another_token_for_images_is_told(tokenizer: dict[str, Any], tmp_path: Path) -> None:
    assert image_token_note(tmp_path, PUBLISHED) is None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert image_token_note(tmp_path, PUBLISHED) is None
    assert image_token_note(tmp_path, {}) is None
    for key in ("image_token_index", "image_token_id"):
        said = image_token_note(tmp_path, {key: 7})
        assert said is not None
        assert said.startswith(f"config.json says {key}: 7, and <image> has the id 32000")
