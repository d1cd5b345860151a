"""config.json of Gemma 3 with images and a model section, one from the other; names of its weights; its processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.config_json import to_config, to_model
from orchestrator.conversion.hugging_face.families.image_models.gemma3 import GEMMA3_IMAGES
from orchestrator.conversion.hugging_face.families.image_models.llava import LLAVA
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.families.registry import (
    family_of_model,
    family_of_type,
    mismatches,
    nearest_family,
)
from orchestrator.conversion.hugging_face.images.processor_files import write_processor
from orchestrator.conversion.hugging_face.images.processor_values import refuse_other_pixels
from orchestrator.conversion.tensors.names import SINGLE
from orchestrator.conversion.tensors.safetensors_reader import PublishedWeights
from orchestrator.spec.loading import load_text
from orchestrator.spec.model import ModelSpec
from tests.unit.conversion.test_config_json import job_of
from tests.unit.conversion.test_config_keys import PUBLISHED

GEMMA = PUBLISHED["gemma-3-4b"]


def model_of(config: dict[str, Any]) -> ModelSpec:
    model: ModelSpec = job_of(to_model(config, family_of_type(config["model_type"]))).model
    return model


def preset(name: str) -> ModelSpec:
    sections = "batch: {}, data: {random_tokens: true}, optimizer: {lr: 1e-4}, schedule: {train_iters: 1}"
    return load_text(f"{{name: x, model: {{preset: {name}}}, {sections}}}").job.model


def test_the_published_file_is_the_preset() -> None:
    model, of_preset = model_of(GEMMA), preset("gemma3-4b-vision")
    unlike = {name for name in type(model).model_fields if getattr(model, name) != getattr(of_preset, name)}
    assert unlike <= {"preset", "seq_length", "max_position_embeddings", "softmax_scale"}
    assert (model.vision, model.scale_of_scores) == (of_preset.vision, of_preset.scale_of_scores)
    assert family_of_model(model) is GEMMA3_IMAGES
    written = to_config(model, GEMMA3_IMAGES, 262208)
    assert (written["mm_tokens_per_image"], written["tie_word_embeddings"]) == (256, True)
    assert model_of(written) == model


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"tie_word_embeddings": []}, ("unsupported_config_value", "tie_word_embeddings")),
        ({"mm_tokens_per_image": 0}, ("unsupported_config_value", "mm_tokens_per_image", "0")),
        ({"mm_tokens_per_image": "256"}, ("unsupported_config_value", "mm_tokens_per_image")),
        ({"vision_config": {"model_type": "clip_vision_model"}}, ("unsupported_image_encoder", "clip_vision_model")),
        ({"vision_config": {"hidden_act": "relu"}}, ("unsupported_config_value", "hidden_act", "relu")),
        ({"vision_config": {"num_channels": 1}}, ("unsupported_config_value", "num_channels", "1")),
        ({"vision_config": {"attention_dropout": 0.1}}, ("unsupported_config_value", "attention_dropout", "0.1")),
        ({"vision_config": {"spatial_merge": 2}}, ("unknown_config_keys", "spatial_merge of vision_config")),
        ({"vision_feature_layer": -2}, ("unknown_config_keys", "vision_feature_layer")),
        (
            {"text_config": {"use_bidirectional_attention": True}},
            ("unsupported_config_value", "use_bidirectional_attention of text_config", "true"),
        ),
        (
            {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}},
            ("conflicting_config_values", "tie_word_embeddings", "false and true"),
        ),
    ],
)
def test_what_cannot_be_represented_is_refused_by_key(more: dict[str, Any], refusal: tuple[str, ...]) -> None:
    with refused(*refusal):
        model_of({**GEMMA, **more})


def test_another_text_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**GEMMA, "text_config": {"model_type": "gemma2"}}))
    save_file({"x": torch.ones(2)}, tmp_path / SINGLE)
    with refused("unsupported_text_model", "gemma2", "gemma3_text"):
        family_of_folder(tmp_path)


def test_other_encoders_are_other_families() -> None:
    """LLaVA's with Gemma 3's text model, and Gemma 3's with a Llama, are of none."""
    gemma, llava = preset("gemma3-4b-vision"), preset("llava1.5-7b")
    with_clip, with_siglip = (
        model.model_copy(update={"vision": other.vision}) for model, other in ((gemma, llava), (llava, gemma))
    )
    assert [each.field for each in mismatches(with_clip, GEMMA3_IMAGES)] == ["vision"]
    assert [each.field for each in mismatches(with_siglip, LLAVA)] == ["vision"]
    assert all(nearest_family(model)[1] for model in (with_clip, with_siglip))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("language_model.model.norm.weight", "model.language_model.norm.weight"),
        ("vision_tower.vision_model.post_layernorm.bias", "model.vision_tower.post_layernorm.bias"),
        (
            "multi_modal_projector.mm_input_projection_weight",
            "model.multi_modal_projector.mm_input_projection_weight",
        ),
    ],
)
def test_names_of_other_versions(name: str, other: str, tmp_path: Path) -> None:
    for own in (name, other):
        save_file({own: torch.ones(2)}, tmp_path / SINGLE)
        assert list(PublishedWeights(tmp_path, GEMMA3_IMAGES)) == [name]


def test_the_encoder_s_head_is_left_out() -> None:
    names = ["vision_tower.vision_model.head.probe", "vision_tower.vision_model.post_layernorm.weight"]
    assert [GEMMA3_IMAGES.leaves_out(name, model_of(GEMMA)) for name in names] == [True, False]


PROCESSOR: dict[str, Any] = {
    **{"do_convert_rgb": None, "do_normalize": True, "do_pan_and_scan": None, "do_rescale": True, "do_resize": True},
    **{"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "image_processor_type": "Gemma3ImageProcessor"},
    **{"image_seq_length": 256, "processor_class": "Gemma3Processor", "resample": 2, "rescale_factor": 1 / 255},
    "size": {"height": 896, "width": 896},
}
"""Of Gemma 3, as it is published."""


def test_the_published_processor_is_ours(tmp_path: Path) -> None:
    """And so is what an export writes."""
    vision = model_of(GEMMA).image_encoder
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    refuse_other_pixels(tmp_path, vision)
    write_processor(vision, tmp_path)
    refuse_other_pixels(tmp_path, vision)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert {key: said[key] for key in said.keys() & PROCESSOR.keys() if PROCESSOR[key] is not None} == {
        key: value for key, value in PROCESSOR.items() if value is not None and key != "image_seq_length"
    }
    assert json.loads((tmp_path / "processor_config.json").read_text())["image_seq_length"] == 256


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ({"do_pan_and_scan": True}, ("do_pan_and_scan is true", "false")),
        ({"resample": 3}, ("resample is 3", "2")),
        ({"size": {"shortest_edge": 896}}, ("size", '{"height": 896, "width": 896}')),
        ({"image_mean": [0.48145466, 0.4578275, 0.40821073]}, ("image_mean", "[0.5, 0.5, 0.5]")),
    ],
)
def test_other_pixels_are_refused(more: dict[str, Any], values: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **more}))
    with refused("image_preprocessing_differs", *values):
        refuse_other_pixels(tmp_path, model_of(GEMMA).image_encoder)
