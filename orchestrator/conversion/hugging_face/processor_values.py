"""What a published model's processor does with images, held against what is done with them here. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.spec.native_resolution import FRAMES
from orchestrator.spec.vision import COLOUR_DEVIATION, COLOUR_MEAN, MARK, VisionSpec

_BICUBIC = 3
_EXACT = 1e-4
"""Two of a colour's means that are nearer than this are one, rounded: ImageNet's are 40 times as far from CLIP's."""
_PIXELS, _WHOLE = "preprocessor_config.json", "processor_config.json"


def refuse_other_pixels(folder: Path, image_size: int) -> None:
    """Raises UserError where the processor beside a model makes other pixels of an image than training would: the
    model would be shown what it has not learnt to see."""
    square = {"height": image_size, "width": image_size}
    _refuse(
        folder,
        {
            "size": ({"shortest_edge": image_size}, image_size),
            "resample": (_BICUBIC,),
            "do_center_crop": (True,),
            "crop_size": (square, image_size),
            "do_pad": (False,),
        },
    )


def refuse_other_patches(folder: Path, vision: VisionSpec) -> None:
    """The same of a model that sees images of any size. How small and how large these may be is for each training."""
    sizes = {"patch_size": vision.patch_size, "merge_size": vision.merge_size, "temporal_patch_size": FRAMES}
    _refuse(folder, {"resample": (_BICUBIC,), **{key: (value,) for key, value in sizes.items()}})


def _refuse(folder: Path, own: Mapping[str, tuple[Any, ...]]) -> None:
    name, said = _processor(folder)
    if wrong := _differences(said, own):
        raise UserError(
            f"{folder / name}: {'; '.join(wrong)}. The model would get other images than it was trained on; if that "
            "is intended, write these values there",
            code="image_preprocessing_differs",
        )


def image_token_note(folder: Path, config: Mapping[str, Any], mark: str = MARK) -> str | None:
    """What to know where config.json gives another id to the token of an image than the tokenizer beside it."""
    key = next((name for name in ("image_token_index", "image_token_id") if config.get(name) is not None), None)
    own = _token_id(folder / "tokenizer.json", mark)
    if key is None or own is None or config[key] == own:
        return None
    return (
        f"config.json says {key}: {json.dumps(config[key])}, and {mark} has the id {own} in the tokenizer.json beside "
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


def _differences(said: Mapping[str, Any], own: Mapping[str, tuple[Any, ...]]) -> list[str]:
    known: dict[str, tuple[Any, ...]] = {
        "do_resize": (True,),
        **own,
        "do_rescale": (True,),
        "rescale_factor": (1 / 255,),
        "do_normalize": (True,),
        "image_mean": (COLOUR_MEAN,),
        "image_std": (COLOUR_DEVIATION,),
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


def _token_id(path: Path, mark: str) -> int | None:
    """Of the token of an image in a tokenizer.json; None where there is none."""
    said = _read(path)
    added, model = said.get("added_tokens"), said.get("model")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("content") == mark and isinstance(token.get("id"), int):
            return int(token["id"])
    words = model.get("vocab") if isinstance(model, dict) else None
    found = words.get(mark) if isinstance(words, dict) else None
    return found if isinstance(found, int) else None
