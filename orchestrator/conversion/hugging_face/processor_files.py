"""What transformers' processor of LLaVA reads: how an image becomes pixels, and how many tokens stand for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.native_resolution import FRAMES
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import COLOUR_DEVIATION, COLOUR_MEAN, MARK, VisionSpec

_BICUBIC = 3


def image_token(tokenizer: TokenizerSpec, mark: str) -> int:
    """The id of the token that stands for images, `mark`. Raises UserError where a tokenizer has none, or cannot be
    read."""
    found = load_tokenizer(tokenizer).token_id(mark)
    if found is None:
        raise UserError(
            f"the tokenizer has no token {mark}, which transformers needs to find images: export the model "
            "without it (--no-tokenizer); its id in config.json is then the last id of the vocabulary",
            code="no_image_token",
        )
    return found


def token_ids(tokenizer: TokenizerSpec, texts: Iterable[str]) -> dict[str, int]:
    """The ids of those special tokens that a tokenizer has."""
    known = load_tokenizer(tokenizer)
    found = {text: known.token_id(text) for text in texts}
    return {text: number for text, number in found.items() if number is not None}


def write_processor(vision: VisionSpec, folder: Path) -> None:
    """Write the files, under the names that all versions of transformers read."""
    if vision.is_native:
        _write(folder / "preprocessor_config.json", _native(vision))
        return
    side = {"height": vision.image_size, "width": vision.image_size}
    pixels = {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "do_convert_rgb": True,
        **{"do_resize": True, "size": {"shortest_edge": vision.image_size}, "resample": _BICUBIC},
        **{"do_center_crop": True, "crop_size": side},
        **{"do_rescale": True, "rescale_factor": 1 / 255},
        **{"do_normalize": True, "image_mean": COLOUR_MEAN, "image_std": COLOUR_DEVIATION},
    }
    tokens = {
        "processor_class": "LlavaProcessor",
        "image_token": MARK,
        "patch_size": vision.patch_size,
        # That of the whole image, which the strategy takes away again.
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    }
    _write(folder / "preprocessor_config.json", pixels)
    _write(folder / "processor_config.json", tokens)


def _native(vision: VisionSpec) -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        **{"do_convert_rgb": True, "do_resize": True, "resample": _BICUBIC},
        **{"min_pixels": vision.native.smallest_image_size**2, "max_pixels": vision.image_size**2},
        **{"do_rescale": True, "rescale_factor": 1 / 255},
        **{"do_normalize": True, "image_mean": COLOUR_MEAN, "image_std": COLOUR_DEVIATION},
        **{"patch_size": vision.patch_size, "merge_size": vision.merge_size, "temporal_patch_size": FRAMES},
    }


def _write(path: Path, said: dict[str, Any]) -> None:
    path.write_text(json.dumps(said, indent=2) + "\n")
