"""Weights that replicas share out, in checkpoints: every rank saves what it keeps, and reads it from any layout's."""

from __future__ import annotations

from typing import Any

from orchestrator.runtime.optimizers.shards import sharded_weight


def as_kept(state: dict[str, Any]) -> dict[str, Any]:
    """A chunk's sharded state dict with what this rank keeps of each weight, numbered, in place of the weight; without
    weights of which it keeps nothing.
    """
    kept = {}
    for name, entry in state.items():
        shard = getattr(getattr(entry, "data", None), "shard", None)
        if shard is None:
            kept[name] = entry
        elif shard.weight.numel():
            kept[name] = dict(enumerate(sharded_weight(entry, shard.start, shard.weight, shard.copy)))
    return kept


def load_weights(chunk: Any, loaded: dict[str, Any]) -> None:
    """Bring into a chunk what was read for `as_kept`: what it shares out is there already."""
    weights = chunk.named_parameters(remove_duplicate=False)
    shared_out = {name for name, parameter in weights if hasattr(parameter, "shard")}
    others = {name: values for name, values in loaded.items() if name not in shared_out}
    chunk.load_state_dict(others, strict=not shared_out)
