"""Which layers of a model have experts, and how it routes tokens to them, as families of transformers say it."""

from __future__ import annotations

from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.weight_mapping import Derived, Said
from orchestrator.spec.model import ModelSpec

_TOPK = "num_experts_per_tok"


def _layers(routed: list[bool], key: str, value: Any) -> dict[str, Any]:
    if not any(routed):
        raise no_network(key, value)
    return {"moe_layer_freq": 1 if all(routed) else [int(each) for each in routed]}


def _listed_layers(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    step, dense = whole(said("decoder_sparse_step"), "decoder_sparse_step"), said("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise no_network("mlp_only_layers", dense)
    numbers = range(fields["num_layers"])
    return _layers([n not in dense and (n + 1) % step == 0 for n in numbers], "decoder_sparse_step", step)


def _list_of_layers(model: ModelSpec) -> dict[str, Any]:
    dense = [number for number, routed in enumerate(model.moe_layers) if not routed]
    return {"decoder_sparse_step": 1, "mlp_only_layers": dense or None}


LISTED_LAYERS = Derived(
    ("moe_layer_freq",), ("decoder_sparse_step", "mlp_only_layers"), _listed_layers, _list_of_layers
)
"""The last of every so many layers has experts, but for those that are listed."""


def _stepped_layers(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    step, listed = said("interleave_moe_layer_step"), said("moe_layers")
    numbers = range(fields["num_layers"])
    if listed is None:
        every = whole(step, "interleave_moe_layer_step")
        return _layers([(n + 1) % every == 0 for n in numbers], "interleave_moe_layer_step", step)
    if not isinstance(listed, list):
        raise no_network("moe_layers", listed)
    return _layers([n in listed for n in numbers], "moe_layers", listed)


STEPPED_LAYERS = Derived(
    ("moe_layer_freq",),
    ("moe_layers", "interleave_moe_layer_step"),
    _stepped_layers,
    lambda model: {"moe_layers": [number for number, routed in enumerate(model.moe_layers) if routed]},
)
"""Listed layers have experts; where there is no list, the last of every so many."""


def _later_layers(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    first = whole(said("first_k_dense_replace") or 0, "first_k_dense_replace", least=0)
    return _layers([n >= first for n in range(fields["num_layers"])], "first_k_dense_replace", first)


def _first_layers(model: ModelSpec) -> dict[str, Any] | None:
    dense = model.moe_layers.count(False)
    return {"first_k_dense_replace": dense} if all(model.moe_layers[dense:]) else None


LATER_LAYERS = Derived(("moe_layer_freq",), ("first_k_dense_replace",), _later_layers, _first_layers)
"""All layers have experts but the first ones."""


def _widths(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    dense, routed = said("intermediate_size"), said("moe_intermediate_size")
    if fields.get("moe_layer_freq", 1) == 1:  # what a dense layer would have is nothing to this network
        return {"ffn_hidden_size": routed}
    return {"ffn_hidden_size": dense, "moe_ffn_hidden_size": routed}


def _keys_of_widths(model: ModelSpec) -> dict[str, Any]:
    dense = {} if all(model.moe_layers) else {"intermediate_size": model.ffn_size}
    return {**dense, "moe_intermediate_size": model.moe_ffn_size}


WIDTHS = Derived(
    ("ffn_hidden_size", "moe_ffn_hidden_size"), ("intermediate_size", "moe_intermediate_size"), _widths, _keys_of_widths
)
"""Of dense MLPs and of experts. After the layers that have these."""

NORMALIZED_SOFTMAX = Derived(
    ("moe_router_pre_softmax",),
    ("norm_topk_prob",),
    lambda said, fields: {"moe_router_pre_softmax": not said("norm_topk_prob")},
    lambda model: {"norm_topk_prob": not model.moe_router_pre_softmax},
)
"""A softmax over all experts whose chosen part is normalized is a softmax over the chosen ones."""


def _normalized_sigmoid(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    normalized, chosen = bool(said("norm_topk_prob")), whole(fields.get("moe_router_topk"), _TOPK)
    if normalized != (chosen > 1):
        raise no_network(f"norm_topk_prob beside a {_TOPK} of {chosen}", normalized)
    return {}


NORMALIZED_SIGMOID = Derived(
    ("moe_router_topk",),
    ("norm_topk_prob",),
    _normalized_sigmoid,
    lambda model: {"norm_topk_prob": model.moe_router_topk > 1},
)
"""megatron-core normalizes the scores of several chosen experts, and never that of one."""


def _shared_experts(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    count = whole(said("n_shared_experts"), "n_shared_experts")
    width = whole(said("moe_intermediate_size"), "moe_intermediate_size")
    return {"moe_shared_expert_intermediate_size": count * width}


def _count_of_shared(model: ModelSpec) -> dict[str, Any] | None:
    count, rest = divmod(model.shared_expert_size, model.moe_ffn_size)
    return {"n_shared_experts": count} if count and not rest else None


SHARED_EXPERTS = Derived(
    ("moe_shared_expert_intermediate_size",), ("n_shared_experts",), _shared_experts, _count_of_shared
)
"""Several experts as wide as the others, which are one of their total width."""


def _factor(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    factor = said("routed_scaling_factor")
    return {} if factor == 1 else {"moe_router_topk_scaling_factor": factor}


FACTOR = Derived(
    ("moe_router_topk_scaling_factor",),
    ("routed_scaling_factor",),
    _factor,
    lambda model: {"routed_scaling_factor": model.moe_router_topk_scaling_factor or 1.0},
)
"""transformers has a number where nothing is multiplied, too."""


def groups(score_topk: int) -> Derived:
    """Groups of experts, chosen by the sum of so many scores of each."""

    def to_fields(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
        count, chosen = (whole(said(key) or 1, key) for key in ("n_group", "topk_group"))
        if count == 1:
            return {}
        found = {"moe_router_num_groups": count, "moe_router_group_topk": chosen}
        by_itself = whole(fields.get("moe_router_topk"), _TOPK) // chosen
        return found if by_itself == score_topk else {**found, "moe_router_group_score_topk": score_topk}

    def to_keys(model: ModelSpec) -> dict[str, Any] | None:
        count, chosen = model.moe_router_num_groups, model.moe_router_group_topk
        if count is None:
            return {"n_group": 1, "topk_group": 1}
        return {"n_group": count, "topk_group": chosen} if model.group_score_topk == score_topk else None

    fields = ("moe_router_num_groups", "moe_router_group_topk", "moe_router_group_score_topk")
    return Derived(fields, ("n_group", "topk_group"), to_fields, to_keys)
