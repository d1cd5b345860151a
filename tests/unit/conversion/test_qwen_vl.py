"""config.json of Qwen2.5-VL and a model section with images of any size, one from the other, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.refused import refused

from orchestrator.conversion.hugging_face.config_json import to_config, to_model
from orchestrator.conversion.hugging_face.families.image_models.qwen import QWEN2_5_VL
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.families.registry import family_of_model
from orchestrator.conversion.hugging_face.images.processor_files import write_processor
from orchestrator.conversion.hugging_face.images.processor_values import refuse_other_pixels
from orchestrator.spec.loading import load_text
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec

VISION: dict[str, Any] = {
    **{"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
    **{"in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14},
    **{"window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2},
}
PUBLISHED: dict[str, Any] = {
    **{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643},
    **{"eos_token_id": 151645, "vision_start_token_id": 151652, "vision_end_token_id": 151653},
    **{"vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656, "hidden_act": "silu"},
    **{"hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 128000},
    **{"max_window_layers": 28, "model_type": "qwen2_5_vl", "num_attention_heads": 28, "num_hidden_layers": 28},
    **{"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768},
    **{"tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.41.2", "use_cache": True},
    **{"use_sliding_window": False, "vocab_size": 152064, "vision_config": VISION},
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
"""That of the 7B."""
OUTSIDE = (
    *("architectures", "model_type", "vision_config", "tie_word_embeddings", "image_token_id", "video_token_id"),
    *("vision_start_token_id", "vision_end_token_id", "vision_token_id"),
)


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """As newer versions of transformers write it."""
    text = {key: value for key, value in config.items() if key not in (*OUTSIDE, "rope_scaling", "rope_theta")}
    rotary = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0}
    text |= {"model_type": "qwen2_5_vl_text", "rope_parameters": rotary}
    return {**{key: value for key, value in config.items() if key in OUTSIDE}, "text_config": text}


@pytest.mark.parametrize("config", [PUBLISHED, nested(PUBLISHED)], ids=["published", "nested"])
def test_a_published_one_is_the_preset(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert family_of_folder(tmp_path) is QWEN2_5_VL
    sections = "batch: {}, data: {random_tokens: true}, optimizer: {lr: 1e-4}, schedule: {train_iters: 1}"
    preset = load_text(f"{{name: x, model: {{preset: qwen2.5-vl-7b}}, {sections}}}").job.model
    own = {"seq_length": 4096, "max_position_embeddings": 128000, "preset": None}
    assert ModelSpec.model_validate(to_model(config, QWEN2_5_VL)) == preset.model_copy(update=own)


def test_an_export_says_the_same() -> None:
    model = ModelSpec.model_validate(to_model(PUBLISHED, QWEN2_5_VL))
    assert family_of_model(model) is QWEN2_5_VL
    written = to_config(model, QWEN2_5_VL, 152064)
    assert written["rope_scaling"] == PUBLISHED["rope_scaling"]
    again = ModelSpec.model_validate(to_model(written, QWEN2_5_VL))
    assert again.model_copy(update={"kv_channels": None}) == model
    assert again.kv_channels == model.head_dim


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"vision_config": {**VISION, "hidden_act": "gelu"}}, "unsupported_config_value"),
        ({"vision_config": {**VISION, "temporal_patch_size": 1}}, "unsupported_config_value"),
        ({"vision_config": {**VISION, "out_hidden_size": 2048}}, "unsupported_config_value"),
        ({"vision_config": {**VISION, "rope_parameters": {"rope_theta": 5000.0}}}, "unsupported_config_value"),
        ({"vision_config": {**VISION, "fullatt_block_indexes": 7}}, "unsupported_config_value"),
        ({"vision_config": {**VISION, "deepstack": [1]}}, "unknown_config_keys"),
        ({"vision_config": {**VISION, "model_type": "qwen3_vl_vision"}}, "unsupported_image_encoder"),
        ({"vision_config": [1]}, "config_value_not_an_object"),
        ({"text_config": "x"}, "config_value_not_an_object"),
        ({"vision_config": {**VISION, "rope_parameters": "x"}}, "config_value_not_an_object"),
        ({"vision_config": {**VISION, "fullatt_block_indexes": [-1]}}, "unsupported_config_value"),
        ({"vision_config": {**VISION, "depth": 10**12}}, "unsupported_config_value"),
        ({"tie_word_embeddings": "false"}, "unsupported_config_value"),
        ({"rope_scaling": {"type": [], "mrope_section": [16, 24, 24]}}, "unsupported_rope_type"),
        ({"vision_config": {**VISION, "num_hidden_layers": 31}}, "unsupported_config_value"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "mrope_section": [16, 24, 24]}}, None),
    ],
)
def test_another_network_is_refused(change: dict[str, Any], code: str | None) -> None:
    if code is None:  # read, and refused by a rule of the job
        assert to_model({**PUBLISHED, **change}, QWEN2_5_VL)["rope_scaling"]["type"] == "yarn"
        return
    with refused(code):
        to_model({**PUBLISHED, **change}, QWEN2_5_VL)


def test_a_processor_that_cuts_other_patches_is_refused(tmp_path: Path) -> None:
    vision = VisionSpec.model_validate(to_model(PUBLISHED, QWEN2_5_VL)["vision"])
    write_processor(vision, tmp_path)
    refuse_other_pixels(tmp_path, vision)
    path = tmp_path / "preprocessor_config.json"
    said = json.loads(path.read_text())
    assert (said["min_pixels"], said["max_pixels"]) == (56 * 56, 980 * 980)
    for key, value in (("patch_size", 16), ("merge_size", 4), ("resample", 2)):
        path.write_text(json.dumps({**said, key: value}))
        with refused("image_preprocessing_differs", key):
            refuse_other_pixels(tmp_path, vision)
