"""Sequences with images of different sizes, as transformers' Qwen2.5-VL takes them."""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers

IMAGE, LENGTH, VOCAB, NEW = 100, 16, 101, 4
POSITIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
PATCH, MERGE, SIZE = 4, 2, 24
GRIDS = torch.tensor([[[4, 6], [2, 2]], [[6, 4], [0, 0]]])
"""Rows and columns of patches of the images of each sequence, [2, n, 2]."""
VISION: dict[str, Any] = {
    **{"depth": 3, "hidden_size": 32, "num_heads": 4, "intermediate_size": 36, "patch_size": PATCH},
    **{"window_size": 2 * MERGE * PATCH, "fullatt_block_indexes": [1], "out_hidden_size": 64},
}


def tokens() -> torch.Tensor:
    """[2, s], of which six and one are of images in the first sequence, and six in the second."""
    found = torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % VOCAB
    found[found == IMAGE] = 0
    found[0, 1:7] = found[0, 9] = found[1, 3:9] = IMAGE
    return found


def pixels(sequence: int) -> list[torch.Tensor]:
    """Those of each image of a sequence, [3, rows, columns], uint8."""
    numbers = (torch.arange(2 * 2 * 3 * SIZE * SIZE).reshape(2, 2, -1) * 37 % 251).to(torch.uint8)
    shapes = [(3, rows * PATCH, columns * PATCH) for rows, columns in GRIDS[sequence].tolist() if rows]
    return [numbers[sequence, place][: math.prod(shape)].view(shape) for place, shape in enumerate(shapes)]


def images() -> torch.Tensor:
    """[2, numbers], uint8, which begin with the pixels of the images of each sequence, one after the other."""
    found = torch.zeros(2, 2 * 3 * SIZE * SIZE, dtype=torch.uint8)
    for sequence, row in enumerate(found):
        flat = torch.cat([each.flatten() for each in pixels(sequence)])
        row[: len(flat)] = flat
    return found


def theirs() -> dict[str, torch.Tensor]:
    """What transformers' model takes beside tokens; its own processor cuts the patches."""
    processor = transformers.models.qwen2_vl.Qwen2VLImageProcessor(do_resize=False, patch_size=PATCH, merge_size=MERGE)
    said = [processor(images=[each], return_tensors="pt", do_resize=False) for each in (*pixels(0), *pixels(1))]
    return {
        "pixel_values": torch.cat([each["pixel_values"] for each in said]),
        "image_grid_thw": torch.cat([each["image_grid_thw"] for each in said]),
        "mm_token_type_ids": (tokens() == IMAGE).int(),
    }


def likeliest(model: Any, new: torch.Tensor) -> torch.Tensor:
    """What transformers' model, without a cache, finds most likely in the place of each of some new tokens behind the
    sequences, [2, new].
    """
    found, whole, places = [], theirs(), ((0, 1), (2,))
    patches = whole["pixel_values"].split(whole["image_grid_thw"].prod(1).tolist())
    for row, of_row in zip(torch.cat([tokens(), new], dim=1), places, strict=True):
        ids = row[None, :-1]
        own = {"pixel_values": torch.cat([patches[place] for place in of_row])}
        own["image_grid_thw"] = whole["image_grid_thw"][list(of_row)]
        with torch.no_grad():
            logits = model(ids, mm_token_type_ids=(ids == IMAGE).int(), **own).logits
        found.append(logits[0, LENGTH - 1 :].argmax(dim=-1))
    return torch.stack(found)
