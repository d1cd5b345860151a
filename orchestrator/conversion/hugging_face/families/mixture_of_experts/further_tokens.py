"""Layers that predict further tokens, as DeepSeek V3 and GLM-4.5 store them: numbered as those behind the last one; and
as Qwen3-Next does, whose one layer is apart from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.weight_mapping import Derived, Family, Said
from orchestrator.errors import UserError
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

COUNT = "num_nextn_predict_layers"
_LAYER = "model.layers.{n}."
FURTHER = (
    Rule("enorm.weight", (f"{_LAYER}enorm.weight",)),
    Rule("hnorm.weight", (f"{_LAYER}hnorm.weight",)),
    Rule("eh_proj.weight", (f"{_LAYER}eh_proj.weight",)),
    Rule("final_layernorm.weight", (f"{_LAYER}shared_head.norm.weight",)),
)
FURTHER_COPIES = {
    f"{_LAYER}embed_tokens.weight": "model.embed_tokens.weight",
    f"{_LAYER}shared_head.head.weight": "lm_head.weight",
}


def _left_out(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    """An import reads them where the job asks for them: many files do not hold those that their configuration names."""
    return {}


def _count(model: ModelSpec) -> dict[str, Any]:
    return {COUNT: model.mtp_num_layers} if model.predicts_further else {}


FURTHER_LAYERS = Derived(("mtp_num_layers",), (COUNT,), _left_out, _count)
"""How many there are."""


APART = "mtp."
"""How names of Qwen3-Next's begin. Its published files hold them, and transformers passes them over."""
FURTHER_APART = (
    Rule("enorm.weight", (f"{APART}pre_fc_norm_embedding.weight",)),
    Rule("hnorm.weight", (f"{APART}pre_fc_norm_hidden.weight",)),
    Rule("eh_proj.weight", (f"{APART}fc.weight",)),
    Rule("final_layernorm.weight", (f"{APART}norm.weight",)),
)
"""Of the one layer: what several had of these, they would share. Embedding and hidden state are in this order, as
vLLM's and SGLang's `qwen3_next_mtp.py` have them.
"""


def _one(model: ModelSpec) -> dict[str, Any] | None:
    """Such a layer is of the kind of the first one there, and of the last one here."""
    is_one = model.mtp_num_layers == 1 and model.moe_layers[0] == model.moe_layers[-1]
    return _count(model) if is_one or not model.predicts_further else None


FURTHER_LAYER_APART = Derived(("mtp_num_layers",), (COUNT,), _left_out, _one)
"""Whether there is one. Published files say nothing of it, and vLLM takes it to be there."""


def layers_of_further_tokens(config: Mapping[str, Any], family: Family) -> int:
    """How many a config.json names. Raises UserError where there are none."""
    count = config.get(COUNT, config.get("num_mtp_layers", family.further_layers)) if family.further else 0
    if whole(count or 0, COUNT, least=0) == 0:
        raise UserError(
            f"config.json: this {family.name} has no layers of multi-token prediction: leave out --mtp",
            code="no_further_tokens",
        )
    if family.further_begin is not None and count > 1:  # they share what is one layer's own here
        raise no_network(COUNT, count)
    return int(count)
