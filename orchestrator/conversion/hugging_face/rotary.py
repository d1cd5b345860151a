"""Rotary positions in config.json, and our fields for them, one from the other. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, section, value_of, whole
from orchestrator.conversion.hugging_face.layer_types import GLOBAL, LOCAL, TYPES
from orchestrator.conversion.weight_mapping import Family
from orchestrator.errors import UserError
from orchestrator.models.blocks.grouped_query_attention.rope_scaling import RopeScaling
from orchestrator.spec.model import ModelSpec

_SCALING: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": ("factor", "original_max_position_embeddings", "short_factor", "long_factor", "attention_factor"),
}
"""Kinds of scaled rotary positions that both sides have, and what is said of them."""
_PARAMETERS, _SCALED, _THETA, _LOCAL_BASE = "rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq"
_POSITIONS, _ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
_PARTIAL_FIELD, _PARTIAL = "rotary_percent", "partial_rotary_factor"
"""Which part of each head rotates, in families that do not fix it."""
ROTARY_KEYS: Mapping[str, tuple[str, ...]] = {
    **{"rope_scaling": (_SCALED, _PARAMETERS), "rotary_base": (_THETA, _PARAMETERS)},
    **{"rotary_base_local": (_LOCAL_BASE, _PARAMETERS), _PARTIAL_FIELD: (_PARTIAL, _PARAMETERS)},
}
"""Field of `model` -> keys of config.json that it comes from in any family that has them."""


def rotary_keys_of(family: Family) -> Iterator[str]:
    """The keys of config.json that say what rotary positions are in a family that has them."""
    yield from (_THETA, _SCALED, _PARAMETERS, TYPES)
    if family.local_base is not None:
        yield _LOCAL_BASE
    if _PARTIAL_FIELD not in family.fixed:
        yield _PARTIAL
    if _ORIGINAL in family.defaults:
        yield _ORIGINAL


def to_rotary_keys(model: ModelSpec, family: Family) -> dict[str, Any]:
    """What config.json says of a model of such a family."""
    found: dict[str, Any] = {_THETA: float(model.rotary_base)}
    if family.local_base is not None:
        found[_LOCAL_BASE] = float(_local_base(model, family))
    if _PARTIAL_FIELD not in family.fixed:
        found[_PARTIAL] = model.rotary_percent
    scaling = model.rope_scaling
    if scaling is None and _PARAMETERS in family.defaults:
        found[_SCALED] = {"rope_type": "default"}  # without it they would be scaled
    if scaling is not None:
        found[_SCALED] = _scaling_keys(scaling)
        if scaling.type in ("yarn", "longrope") and scaling.original_max_position_embeddings is not None:
            # Versions of transformers take the factor from these two, and others the factor itself.
            found[_POSITIONS] = round(scaling.factor * scaling.original_max_position_embeddings)
        if scaling.type == "longrope" and _ORIGINAL in family.defaults:
            found |= _published_longrope(found[_SCALED], found[_POSITIONS])
    return found


def _scaling_keys(scaling: RopeScaling) -> dict[str, Any]:
    said = {name: getattr(scaling, name) for name in _SCALING[scaling.type]}
    given = {name: value for name, value in said.items() if value is not None}
    if given.get("truncate") is True:  # what all versions of transformers do
        del given["truncate"]
    return {"rope_type": scaling.type, **given}


def _published_longrope(said: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """As published files of Phi-3 have it, of which versions of transformers read no other keys."""
    original = said[_ORIGINAL]
    follows = {_ORIGINAL} | ({"factor"} if said["factor"] == positions / original else set())
    kept = {key: value for key, value in said.items() if key not in follows | {"rope_type"}}
    return {_ORIGINAL: original, _SCALED: {"type": said["rope_type"], **kept}}


def rotary_parameters(model: ModelSpec) -> dict[str, Any]:
    """What `rope_parameters` of newer versions of transformers say of a model."""
    scaling = {"rope_type": "default"} if model.rope_scaling is None else _scaling_keys(model.rope_scaling)
    return {"rope_theta": float(model.rotary_base), **scaling}


def to_rotary_fields(config: Mapping[str, Any], family: Family, place: str) -> dict[str, Any]:
    """Our fields, of a config.json of such a family. Raises UserError with what we cannot represent."""
    return rotary_fields(config, family) if family.local_base is None else _rotary_of_two(config, family, place)


def rotary_fields(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Our fields, from `rope_parameters` of newer versions of transformers, or `rope_theta` and `rope_scaling` of older
    ones.
    """
    old, new = section(config, _SCALED), section(config, _PARAMETERS)
    if old and new and old != new:
        raise UserError(
            "config.json: rope_scaling and rope_parameters are the same, but have different values: remove one",
            code="conflicting_config_values",
        )
    parameters = {**old, **new} or dict(family.defaults.get(_PARAMETERS, {}))
    base = parameters.pop(_THETA, None) or value_of(config, _THETA, family) or 10000
    if isinstance(base, bool) or not isinstance(base, int | float):
        raise UserError(f"config.json: rope_theta is {base!r}, and not a number", code="rope_theta_not_a_number")
    fields: dict[str, Any] = {"rotary_base": int(base) if base == base // 1 else base}
    former, kind = parameters.pop("type", None), parameters.pop("rope_type", None)
    kind = kind or former or "default"
    part = parameters.pop(_PARTIAL, None)
    if _PARTIAL_FIELD not in family.fixed:
        fields[_PARTIAL_FIELD] = part or value_of(config, _PARTIAL, family) or 1.0
    elif (part or 1.0) != 1.0:
        raise UserError(
            f"config.json: only a part of each head is rotated ({_PARTIAL})", code="unsupported_partial_rotary"
        )
    if not isinstance(kind, str) or kind not in _SCALING:
        raise UserError(
            f"config.json: rotary positions of type {kind!r}; there are {', '.join(_SCALING)}",
            code="unsupported_rope_type",
        )
    if "truncate" in parameters:  # transformers rounds where it is not said, and not where it is null
        parameters["truncate"] = bool(parameters["truncate"])
    given = {name: value for name, value in parameters.items() if value is not None}
    if kind == "yarn" and config.get(_POSITIONS) is not None:
        given.setdefault(_ORIGINAL, config[_POSITIONS])
    if kind == "longrope":
        given |= _longrope(config, given, family)
    other = sorted(given.keys() - set(_SCALING[kind]))
    if other:
        raise UserError(
            f"config.json: rotary positions of type {kind} with {', '.join(other)}, not known here",
            code="unknown_rope_keys",
        )
    return fields if kind == "default" else {**fields, "rope_scaling": {"type": kind, **given}}


def _longrope(config: Mapping[str, Any], given: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The lengths before and after the scaling: those of config.json itself go before what is said of the scaling."""
    original = whole(value_of(config, _ORIGINAL, family) or given.get(_ORIGINAL), _ORIGINAL)
    positions = whole(value_of(config, _POSITIONS, family), _POSITIONS)
    try:
        times = max(positions / original, 1.0)
    except OverflowError as error:
        raise no_network(_POSITIONS, positions) from error
    return {_ORIGINAL: original, "factor": given.get("factor", times)}


def _rotary_of_two(config: Mapping[str, Any], family: Family, place: str) -> dict[str, Any]:
    """The same where layers with windows have frequencies of their own: those of newer versions by kind of layer."""
    new = rotary_by_kind(config, place)
    local = {_THETA: config.get(_LOCAL_BASE, family.local_base), **section(new, LOCAL)}
    plain = replace(family, defaults={**family.defaults, _THETA: family.local_base})
    fields = rotary_fields({_PARAMETERS: local}, plain)
    if "rope_scaling" in fields:
        raise UserError(
            f"config.json: {_PARAMETERS}{place} scales positions in layers with a window",
            code="unsupported_rope_scaling",
        )
    others = {key: value for key, value in config.items() if key not in (_PARAMETERS, TYPES)}
    both = {**others, _PARAMETERS: section(new, GLOBAL)} if new.get(GLOBAL) else others
    return {**rotary_fields(both, family), "rotary_base_local": fields["rotary_base"]}


def rotary_by_kind(config: Mapping[str, Any], place: str = "") -> Mapping[str, Any]:
    """`rope_parameters` by kind of layer. Raises UserError where they are not."""
    found = section(config, _PARAMETERS)
    if strange := sorted(found.keys() - {LOCAL, GLOBAL}):
        raise UserError(
            f"config.json: {_PARAMETERS}{place} is by kind of layer, and has {', '.join(strange)}",
            code="unknown_rope_keys",
        )
    return found


def _local_base(model: ModelSpec, family: Family) -> float:
    """Raises UserError where layers with a window have scaled positions, which a family's have not."""
    if model.rotary_base_local is not None or model.sliding_window is None:
        return model.rotary_base_local or family.local_base or model.rotary_base
    if model.rope_scaling is not None:
        raise UserError(
            f"model.rope_scaling scales positions in layers with a window too, and {family.name} only in the others: "
            "write model.rotary_base_local",
            code="network_not_exportable",
        )
    return model.rotary_base
