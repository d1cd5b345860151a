"""The names of the weights in a Hugging Face folder, without torch: they tell families of one `model_type` apart."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.conversion.tensors.headers import read_headers
from orchestrator.errors import UserError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
"""The weights of PEFT's adapters."""


def names_in(folder: Path) -> frozenset[str]:
    """The names as they are stored; none where files are missing or damaged, which reading the weights will say."""
    try:
        if (folder / SINGLE).is_file():
            return frozenset(header.name for header in read_headers(folder / SINGLE))
        return frozenset(json.loads((folder / INDEX).read_bytes())["weight_map"])
    except (UserError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
