"""The names of the weights in a Hugging Face folder, without torch: they tell families of one `model_type` apart."""

from __future__ import annotations

import json
from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_LENGTH_BYTES, _LONGEST_HEADER = 8, 100 << 20


def names_in(folder: Path) -> frozenset[str]:
    """The names as they are stored; none where files are missing or damaged, which reading the weights will say."""
    try:
        if (folder / SINGLE).is_file():
            with open(folder / SINGLE, "rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                return frozenset(json.loads(file.read(min(length, _LONGEST_HEADER))))
        return frozenset(json.loads((folder / INDEX).read_bytes())["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
