"""What a published model's processor does with images, held against what is done with them here. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.spec.native_resolution import FRAMES
from orchestrator.spec.vision import MARK, VisionSpec

RESAMPLING = {"bilinear": 2, "bicubic": 3}
"""Pillow's numbers for ways to scale an image."""
_EXACT = 1e-4
"""Two of a colour's means that are nearer than this are one, rounded: ImageNet's are 40 times as far from CLIP's."""
_PIXELS, _WHOLE = "preprocessor_config.json", "processor_config.json"


def refuse_other_pixels(folder: Path, vision: VisionSpec) -> None:
    """Raises UserError where the processor beside a model makes other pixels of an image than training would: the
    model would be shown what it has not learnt to see."""
    name, said = _processor(folder)
    if wrong := _differences(said, vision):
        raise UserError(
            f"{folder / name}: {'; '.join(wrong)}. The model would get other images than it was trained on; if that "
            "is intended, write these values there",
            code="image_preprocessing_differs",
        )


def image_token_note(folder: Path, config: Mapping[str, Any], token: str = MARK) -> str | None:
    """What to know where config.json gives another id to the token of an image than the tokenizer beside it."""
    key = next((name for name in ("image_token_index", "image_token_id") if config.get(name) is not None), None)
    own = _token_id(folder / "tokenizer.json", token)
    if key is None or own is None or config[key] == own:
        return None
    return (
        f"config.json says {key}: {json.dumps(config[key])}, and {token} has the id {own} in the tokenizer.json beside "
        "it, which is taken"
    )


def _processor(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """The file that says what becomes of images, and what it says. Newer versions of transformers write one file."""
    if said := _read(folder / _PIXELS):
        return _PIXELS, said
    inner = _read(folder / _WHOLE).get("image_processor")
    return _WHOLE, inner if isinstance(inner, dict) else {}


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Raises UserError where it is none."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}", code="unreadable_config") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object", code="not_a_json_object")
    return found


def _square(vision: VisionSpec) -> dict[str, tuple[Any, ...]]:
    size, crops = vision.image_size, vision.kind.crops
    square = {"height": size, "width": size}
    return {
        "size": ({"shortest_edge": size}, size) if crops else (square,),
        "do_center_crop": (crops,),
        **({"crop_size": (square, size)} if crops else {"do_pan_and_scan": (False,)}),
        "do_pad": (False,),
    }


def _patches(vision: VisionSpec) -> dict[str, tuple[Any, ...]]:
    """Of images of any size. How small and how large these may be is for each training."""
    sizes = {"patch_size": vision.patch_size, "merge_size": vision.merge_size, "temporal_patch_size": FRAMES}
    return {key: (value,) for key, value in sizes.items()}


def _differences(said: Mapping[str, Any], vision: VisionSpec) -> list[str]:
    kind = vision.kind
    known: dict[str, tuple[Any, ...]] = {
        "do_resize": (True,),
        **(_patches(vision) if kind.keeps_shape else _square(vision)),
        "resample": (RESAMPLING[kind.resampling],),
        "do_rescale": (True,),
        "rescale_factor": (1 / 255,),
        "do_normalize": (True,),
        "image_mean": (kind.colour_mean,),
        "image_std": (kind.colour_deviation,),
    }
    return [
        f"{key} is {json.dumps(said[key])}, and here it is {json.dumps(values[0])}"
        for key, values in known.items()
        if said.get(key) is not None and not any(_is_same(said[key], value) for value in values)
    ]


def _is_same(said: Any, value: Any) -> bool:
    if isinstance(value, float):
        return isinstance(said, int | float) and math.isclose(said, value, abs_tol=_EXACT)
    if isinstance(value, tuple):
        return isinstance(said, list) and len(said) == len(value) and all(map(_is_same, said, value))
    return bool(said == value)


def _token_id(path: Path, token: str) -> int | None:
    """Of the token of an image in a tokenizer.json; None where there is none."""
    said = _read(path)
    added, model = said.get("added_tokens"), said.get("model")
    for each in added if isinstance(added, list) else ():
        if isinstance(each, dict) and each.get("content") == token and isinstance(each.get("id"), int):
            return int(each["id"])
    words = model.get("vocab") if isinstance(model, dict) else None
    found = words.get(token) if isinstance(words, dict) else None
    return found if isinstance(found, int) else None
