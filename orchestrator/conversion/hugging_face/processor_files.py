"""What transformers' processor of LLaVA reads: how an image becomes pixels, and how many tokens stand for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import COLOUR_DEVIATION, COLOUR_MEAN, MARK, VisionSpec

_BICUBIC = 3


def image_token(tokenizer: TokenizerSpec) -> int:
    """The id of the token that stands for images. Raises UserError where a tokenizer has none, or cannot be read."""
    found = load_tokenizer(tokenizer).token_id(MARK)
    if found is None:
        raise UserError(
            f"the tokenizer has no token {MARK}, which transformers needs to find images: export the model "
            "without it (--no-tokenizer); image_token_index is then the last id of the vocabulary",
            code="no_image_token",
        )
    return found


def write_processor(vision: VisionSpec, folder: Path) -> None:
    """Write the files, under the names that all versions of transformers read."""
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


def _write(path: Path, said: dict[str, Any]) -> None:
    path.write_text(json.dumps(said, indent=2) + "\n")
