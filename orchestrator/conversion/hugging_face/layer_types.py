"""Keys of config.json that say of each layer whether it has a window, or rotary positions, and our fields for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, short, whole
from orchestrator.conversion.weight_mapping import Derived, Said
from orchestrator.errors import UserError
from orchestrator.spec.model import ModelSpec

TYPES = "layer_types"
INTERVALS = ("sliding_window_pattern", "_sliding_window_pattern")
"""What older versions of transformers read instead, and what newer ones write beside it."""
LOCAL, GLOBAL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
FULL_INTERVAL = "full_attention_interval"
"""What older versions of transformers read instead where there is linear attention."""


def windows(config: Mapping[str, Any], layers: int, window: int | None, interval: int, place: str) -> dict[str, Any]:
    """Our fields, of a network whose layers are these; by default every `interval`-th attends to all tokens. `window`:
    of the others. Raises UserError for other layers than every so many-th.
    """
    types = config.get(TYPES)
    if types is None:
        every = whole(config.get(INTERVALS[0], interval), f"{INTERVALS[0]}{place}")
        types = [GLOBAL if number % every == 0 else LOCAL for number in range(1, layers + 1)]
    if not isinstance(types, list) or len(types) != layers or any(each not in (LOCAL, GLOBAL) for each in types):
        raise no_network(f"{TYPES}{place}", types)
    freq = interval_of([each == GLOBAL for each in types], f"{TYPES}{place}", types)
    if freq == 1 or window is None:
        if freq != 1:
            raise UserError(
                f"config.json: {TYPES}{place} has {LOCAL}, but sliding_window{place} is null",
                code="unsupported_config_value",
            )
        return {"sliding_window": None, "window_attn_skip_freq": None}
    return {"sliding_window": window, "window_attn_skip_freq": freq}


def interval_of(marked: Sequence[bool], key: str, value: Any) -> int | None:
    """Every how many-th layer is marked; None where none is. Raises UserError, which names the key, for other ones."""
    if True not in marked:
        return None
    interval = list(marked).index(True) + 1
    if any(each != (number % interval == 0) for number, each in enumerate(marked, 1)):
        raise UserError(
            f"config.json: {key} is {short(value)}, which this version does not support: layers that differ must be "
            "every second, third, … one",
            code="unsupported_config_value",
        )
    return interval


def _to_linear(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    types, layers = said(TYPES), whole(fields["num_layers"], "num_hidden_layers")
    if types is None:
        interval = whole(said(FULL_INTERVAL), FULL_INTERVAL)
        types = [GLOBAL if number % interval == 0 else LINEAR for number in range(1, layers + 1)]
    if not isinstance(types, list) or len(types) != layers or any(each not in (LINEAR, GLOBAL) for each in types):
        raise no_network(TYPES, types)
    linear = [each == LINEAR for each in types]
    if len(set(linear)) == 1:
        raise no_network(TYPES, types)
    interval = linear.index(False) + 1
    if linear == [number % interval != 0 for number in range(1, layers + 1)]:
        return {"linear_attention_freq": interval}
    return {"linear_attention_freq": [int(each) for each in linear]}


def _types_of_linear(model: ModelSpec) -> dict[str, Any] | None:
    if not model.has_linear_attention:
        return None
    return {TYPES: [LINEAR if each else GLOBAL for each in model.linear_attention_layers]}


LINEAR_LAYERS = Derived(("linear_attention_freq",), (TYPES, FULL_INTERVAL), _to_linear, _types_of_linear)
"""Layers with linear attention, and others with attention to all tokens."""


def layer_types(model: ModelSpec) -> list[str]:
    """What config.json says of the layers of a model."""
    skip = model.window_attn_skip_freq
    if model.sliding_window is None:
        return [GLOBAL] * model.num_layers
    is_global = (skip is not None and number % skip == 0 for number in range(1, model.num_layers + 1))
    return [GLOBAL if each else LOCAL for each in is_global]
