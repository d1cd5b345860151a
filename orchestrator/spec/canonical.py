"""The identity of a spec. No pydantic here: a stored spec of an older version has one although it may not be valid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_ADDED: dict[tuple[str, ...], Any] = {
    ("batch", "calculate_per_token_loss"): None,
    ("evaluation", "same_samples"): True,
    ("model", "add_output_bias"): False,
    ("notifications",): {
        "when": ["completed", "failed"],
        "cells": ["failed"],
        "command": None,
        "webhook": None,
        "webhook_fields": {},
        "timeout": 20,
    },
    ("data", "chat", "date"): None,
    ("data", "tokenizer", "lower_case"): None,
    ("model", "vision"): None,
    ("parallelism", "tp_comm_overlap"): None,
    ("runtime", "attention_backend"): "auto",
    ("runtime", "cuda_graphs"): None,
    ("schedule", "drop_last"): False,
    ("throughput",): {"flops": "full"},
    ("tracking", "dashboard_url"): None,
    ("tracking", "system_metrics_seconds"): 10.0,
    ("tracking", "tensorboard"): False,
    ("tracking", "wandb"): None,
}
"""What specs have that were not stored with it once, with the value that means the same as not having it. A key that
is added to the spec belongs here, or every stored run becomes another than its own spec.
"""


def config_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a spec, hex. The same spec gives the same hash on every machine, and one that
    says nothing by a newer key the hash that it had before there was that key.
    """
    for path, default in _ADDED.items():
        document = _without(document, path, default)
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _without(document: Mapping[str, Any], path: tuple[str, ...], default: Any) -> Mapping[str, Any]:
    """The document without the key at the path, where that is at its default."""
    name, *rest = path
    if name not in document:
        return document
    value = document[name]
    if rest:
        return {**document, name: _without(value, tuple(rest), default)} if isinstance(value, Mapping) else document
    return document if value != default else {key: each for key, each in document.items() if key != name}
