"""SmolLM3: Llama without rotary positions in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.hugging_face.families.llama import DEFAULTS, FIXED, LLAMA
from orchestrator.conversion.hugging_face.layer_types import interval_of
from orchestrator.conversion.weight_mapping import Derived, Said
from orchestrator.spec.model import ModelSpec

_LAYERS, _INTERVAL = "no_rope_layers", "no_rope_layer_interval"


def rotated_layers(layers: int, freq: int | None) -> list[bool]:
    """Which layers have rotary positions, where every `freq`-th has none."""
    return [freq is None or number % freq != 0 for number in range(1, layers + 1)]


def _rotated(model: ModelSpec) -> dict[str, list[int]]:
    """1 for each layer with rotary positions, 0 for the others."""
    return {_LAYERS: [int(each) for each in rotated_layers(model.num_layers, model.no_rope_freq)]}


def _without(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    rotated, interval = said(_LAYERS), said(_INTERVAL)
    if rotated is not None:
        if not isinstance(rotated, list) or len(rotated) != fields["num_layers"] or not any(rotated):
            raise no_network(_LAYERS, rotated)
        return {"no_rope_freq": interval_of([not each for each in rotated], _LAYERS, rotated)}
    return {"no_rope_freq": whole(interval, _INTERVAL, least=2)}


NO_ROPE = Derived(("no_rope_freq",), (_LAYERS, _INTERVAL), _without, _rotated)
"""Every so many-th layer is without rotary positions."""

SMOLLM3 = replace(
    LLAMA,
    name="SmolLM3",
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    derived=(NO_ROPE,),
    fixed={field: value for field, value in FIXED.items() if field != "no_rope_freq"},
    constants={**LLAMA.constants, "use_sliding_window": False},
    defaults={
        **DEFAULTS,
        **{"num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2000000},
        **{"max_position_embeddings": 32768, _INTERVAL: 4},
    },
    written={"pad_token_id": None},  # by default a token that a smaller vocabulary does not have
    # Of windows, which use_sliding_window says there are none of.
    ignored=frozenset({"sliding_window", "max_window_layers"}),
)
