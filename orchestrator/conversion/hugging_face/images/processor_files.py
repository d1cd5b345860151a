"""Files of transformers' processors of LLaVA, Gemma 3 and Qwen2.5-VL: how images become pixels, and
how many tokens each takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.conversion.hugging_face.images.processor_values import RESAMPLING
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.models.image_encoders import ImageEncoderName
from orchestrator.spec.native_resolution import FRAMES
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import MARK, VisionSpec


def image_token(tokenizer: TokenizerSpec, token: str = MARK) -> int:
    """The id of the token that stands for images. Raises UserError where a tokenizer has none, or cannot be read."""
    found = load_tokenizer(tokenizer).token_id(token)
    if found is None:
        raise UserError(
            f"the tokenizer has no token {token}, which transformers needs to find images: export the model "
            "without it (--no-tokenizer); its id in config.json is then the last id of the vocabulary",
            code="no_image_token",
        )
    return found


def token_ids(tokenizer: TokenizerSpec, keys: Mapping[str, str]) -> dict[str, int]:
    """The ids of those special tokens that a tokenizer has, by the keys that `keys` has for them."""
    known = load_tokenizer(tokenizer)
    found = {key: known.token_id(text) for text, key in keys.items()}
    return {key: number for key, number in found.items() if number is not None}


def write_processor(vision: VisionSpec, folder: Path) -> None:
    """Write the files, under the names that all versions of transformers read."""
    side, kind = {"height": vision.image_size, "width": vision.image_size}, vision.kind
    pixels, tokens = _PROCESSORS[vision.type](vision, side)
    scaled = {
        **pixels,
        "do_convert_rgb": True,
        **{"do_resize": True, "resample": RESAMPLING[kind.resampling]},
        **{"do_rescale": True, "rescale_factor": 1 / 255},
        **{"do_normalize": True, "image_mean": kind.colour_mean, "image_std": kind.colour_deviation},
    }
    _write(folder / "preprocessor_config.json", scaled)
    _write(folder / "processor_config.json", tokens)


_Files = tuple[dict[str, Any], dict[str, Any]]
"""What the file of pixels says beyond the common, and that of the processor."""


def _llava(vision: VisionSpec, side: dict[str, int]) -> _Files:
    pixels = {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "size": {"shortest_edge": vision.image_size},
        **{"do_center_crop": True, "crop_size": side},
    }
    return pixels, {
        "processor_class": "LlavaProcessor",
        "image_token": MARK,
        "patch_size": vision.patch_size,
        # That of the whole image, which the strategy takes away again.
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    }


def _gemma3(vision: VisionSpec, side: dict[str, int]) -> _Files:
    name = "Gemma3Processor"
    pixels = {
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": name,
        "size": side,
        "do_pan_and_scan": False,
    }
    return pixels, {"processor_class": name, "image_seq_length": vision.tokens_per_image}


def _qwen(vision: VisionSpec, side: dict[str, int]) -> _Files:
    name = "Qwen2_5_VLProcessor"
    pixels = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": name,
        **{"min_pixels": vision.native.smallest_image_size**2, "max_pixels": vision.image_size**2},
        **{"patch_size": vision.patch_size, "merge_size": vision.merge_size, "temporal_patch_size": FRAMES},
    }
    return pixels, {"processor_class": name}


_PROCESSORS: Final[Mapping[ImageEncoderName, Callable[[VisionSpec, dict[str, int]], _Files]]] = {
    "llava": _llava,
    "gemma3": _gemma3,
    "qwen2.5": _qwen,
}


def _write(path: Path, said: dict[str, Any]) -> None:
    path.write_text(json.dumps(said, indent=2) + "\n")
