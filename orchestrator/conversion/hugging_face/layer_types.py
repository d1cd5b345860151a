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
LOCAL, GLOBAL = "sliding_attention", "full_attention"
_WINDOW, _SWITCH, _FIRST = "sliding_window", "use_sliding_window", "max_window_layers"


def windows(config: Mapping[str, Any], layers: int, window: int | None, interval: int, place: str) -> dict[str, Any]:
    """Our fields, of a network whose layers are these; by default every `interval`-th attends to all tokens. `window`:
    of the others. Raises UserError for layers of other kinds.
    """
    types = config.get(TYPES)
    if types is None:
        every = whole(config.get(INTERVALS[0], interval), f"{INTERVALS[0]}{place}")
        types = [GLOBAL if number % every == 0 else LOCAL for number in range(1, layers + 1)]
    return windows_of(types, layers, window, place)


def windows_of(types: Any, layers: int, window: Any, place: str = "") -> dict[str, Any]:
    """Our fields, of so many layers of these types. Raises UserError where they are others."""
    if not isinstance(types, list) or len(types) != layers or any(each not in (LOCAL, GLOBAL) for each in types):
        raise no_network(f"{TYPES}{place}", types)
    if LOCAL not in types:
        return {"sliding_window": None, "window_attn_skip_freq": None}
    if window is None:
        raise UserError(
            f"config.json: {TYPES}{place} has {LOCAL}, but sliding_window{place} is null",
            code="unsupported_config_value",
        )
    if GLOBAL not in types:
        return {"sliding_window": window, "window_attn_skip_freq": None}
    every = types.index(GLOBAL) + 1
    is_regular = all((each == GLOBAL) == (number % every == 0) for number, each in enumerate(types, 1))
    freq = every if is_regular else [int(each == LOCAL) for each in types]
    return {"sliding_window": window, "window_attn_skip_freq": freq}


def _listed(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    layers, window = whole(fields["num_layers"], "num_hidden_layers"), said(_WINDOW)
    types = said(TYPES)
    return windows_of([GLOBAL if window is None else LOCAL] * layers if types is None else types, layers, window)


LISTED_WINDOWS = Derived(
    ("sliding_window", "window_attn_skip_freq"),
    (_WINDOW, TYPES),
    _listed,
    lambda model: {_WINDOW: model.sliding_window, TYPES: layer_types(model)},
)
"""Each layer is listed; by default all have the window, where there is one."""


def _switched(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    layers, window = whole(fields["num_layers"], "num_hidden_layers"), said(_WINDOW) if said(_SWITCH) else None
    types = said(TYPES)
    if types is None:
        first = whole(said(_FIRST), _FIRST, least=0)
        types = [LOCAL if window is not None and number >= first else GLOBAL for number in range(layers)]
    return windows_of(types, layers, window)


def _switch(model: ModelSpec) -> dict[str, Any]:
    if model.sliding_window is None:
        return {_SWITCH: False}
    full = model.windowed_layers.index(True)
    first = {_FIRST: full} if all(model.windowed_layers[full:]) else {}
    return {_SWITCH: True, _WINDOW: model.sliding_window, TYPES: layer_types(model), **first}


SWITCHED_WINDOWS = Derived(
    ("sliding_window", "window_attn_skip_freq"), (_SWITCH, _WINDOW, _FIRST, TYPES), _switched, _switch
)
"""A switch says whether there is a window; by default the first layers are without it."""


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


def layer_types(model: ModelSpec) -> list[str]:
    """What config.json says of the layers of a model."""
    return [LOCAL if windowed else GLOBAL for windowed in model.windowed_layers]
