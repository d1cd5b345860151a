"""Multi-head latent attention: flags that mean something beside --multi-latent-attention only."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from orchestrator.errors import UserError
from orchestrator.models.blocks.flags import (
    INFERENCE,
    BlockFlags,
    CheckpointArguments,
    FlagGroup,
    FlagPattern,
    FlagWriter,
    GivenFlags,
    StoredKey,
    number_of,
)
from orchestrator.models.blocks.latent_attention.fields import LatentAttentionSpec

LATENT, KV_RANK, SCALING = "multi-latent-attention", "model.kv_lora_rank", "model.rope_scaling"
_KV_RANK = 32
"""Megatron-LM's default."""
_WIDTHS = {
    "kv-lora-rank": KV_RANK,
    "q-lora-rank": "model.q_lora_rank",
    "qk-head-dim": "model.qk_head_dim",
    "qk-pos-emb-head-dim": "model.qk_pos_emb_head_dim",
    "v-head-dim": "model.v_head_dim",
}
_ROPE_TYPE, _FACTOR, _MSCALE, _MSCALE_ALL = "rope-type", "rotary-scaling-factor", "mscale", "mscale-all-dim"
_BOTH = "both are set, or mscale is 1 and the other 0"
_KV, _Q = "self_attention.linear_kv_", "self_attention.linear_q_"
_LENGTH = 4096
"""megatron-core's `original_max_position_embeddings`, for which Megatron-LM has no flag beside this attention."""


def read(given: GivenFlags) -> None:
    if not given.has(LATENT):
        given.no_effect((*_WIDTHS, _ROPE_TYPE, _FACTOR, _MSCALE, _MSCALE_ALL), f"it goes with --{LATENT}")
        return
    given.settle(LATENT, "carried", KV_RANK)
    given.default(KV_RANK, _KV_RANK)
    for flag, path in _WIDTHS.items():
        value = given.number(flag)
        if given.has(flag) and not value:
            given.write_it(flag, path)
        elif given.has(flag):
            given.carry(flag, path, value)
    if given.has("kv-channels"):
        given.overrule("kv-channels", f"--{LATENT} has widths of its own")
    if given.get("model.position_embedding_type") == "none":
        given.put("model.position_embedding_type", "rope", f"--{LATENT} rotates by itself")
    _read_scaling(given)


def _read_scaling(given: GivenFlags) -> None:
    """YaRN, unless --rope-type says otherwise; its factor of 1 is no scaling."""
    flags = (_FACTOR, _MSCALE, _MSCALE_ALL)
    if given.text(_ROPE_TYPE) == "rope":
        given.settle(_ROPE_TYPE, "default", SCALING)
        given.no_effect(flags, "--rope-type rope scales no positions")
        return
    if given.has(_ROPE_TYPE):
        given.settle(_ROPE_TYPE, "carried", SCALING)
    numbers = {flag: _number(given, flag, default) for flag, default in zip(flags, (1.0, 1.0, 0.0), strict=True)}
    for flag, number in numbers.items():
        if number is None:
            given.write_it(flag, SCALING, f"--{flag} is no number")
            given.no_effect(flags, f"--{flag} is not known")
            return
    factor, mscale, mscale_all = (numbers[flag] or 0.0 for flag in flags)
    if factor < 1:
        given.refuse_value(_FACTOR, SCALING, "a factor of at least 1 is expected")
        given.no_effect((_MSCALE, _MSCALE_ALL), f"it goes with --{_FACTOR}")
        return
    if factor == 1:
        given.no_effect(flags, "a factor of 1 is no scaling")
        return
    values: dict[str, Any] = {"type": "yarn", "factor": factor, "original_max_position_embeddings": _LENGTH}
    if mscale and mscale_all:
        values |= {"mscale": mscale, "mscale_all_dim": mscale_all}
    elif (mscale, mscale_all) != (1.0, 0.0):
        flag = _MSCALE if given.has(_MSCALE) else _MSCALE_ALL
        given.refuse_value(flag, SCALING, _BOTH)
        given.no_effect(flags, f"it goes with --{flag}")
        return
    given.carry(_FACTOR, SCALING, values)
    for flag in (_MSCALE, _MSCALE_ALL):
        if given.has(flag):
            given.settle(flag, "carried", SCALING, given.text(flag))


def _number(given: GivenFlags, flag: str, default: float) -> float | None:
    """Of a flag, or Megatron-LM's default; None for what is no number from 0."""
    if not given.has(flag):
        return default
    try:
        number = float(given.text(flag) or "")
    except ValueError:
        return None
    return number if 0 <= number < inf else None


def write(writer: FlagWriter) -> None:
    model = writer.job.model
    if not model.has_latent_attention:
        return
    writer.add("MODEL", LATENT)
    if writer.job.runtime.layers == "torch":
        writer.take_back("transformer-impl")
        writer.say_otherwise("runtime.layers", "Megatron-LM has latent attention with Transformer Engine only")
    for flag, path in _WIDTHS.items():
        value = writer.value(path)
        if value is not None:
            writer.add("MODEL", flag, value)
    scaling = model.rope_scaling
    if scaling is None:
        writer.add("MODEL", _ROPE_TYPE, "rope")
        writer.add("RUNTIME", "no-rope-fusion")  # megatron-core's kernel for this attention is YaRN's
        return
    plain = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "truncate": True, "type": "yarn"}
    both = (scaling.mscale is None) == (scaling.mscale_all_dim is None)
    said = all(getattr(scaling, name) == value for name, value in plain.items())
    if not said or not both or scaling.original_max_position_embeddings != _LENGTH:
        writer.unsaid_value(SCALING, f"Megatron-LM has YaRN of {_LENGTH} tokens here, with its usual figures")
        return
    writer.add("MODEL", _ROPE_TYPE, "yarn")
    writer.add("MODEL", _FACTOR, scaling.factor)
    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        writer.add("MODEL", _MSCALE, scaling.mscale)
        writer.add("MODEL", _MSCALE_ALL, scaling.mscale_all_dim)


def _to_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """YaRN, unless `rope_type` says otherwise, and no width of a head but those of this attention, which rotates by
    itself. Raises UserError for a scaling that is not described here.
    """
    found: dict[str, Any] = {"kv_channels": None, "rope_scaling": None}
    if arguments.get("position_embedding_type") == "none":
        found["position_embedding_type"] = "rope"
    kind, factor = arguments.get("rope_type"), number_of(arguments, "rotary_scaling_factor", 1.0)
    if kind not in (None, "rope", "yarn"):
        raise _unsupported(f"rope_type {str(kind)[:40]!r}")
    if kind == "rope" or factor == 1:
        return found
    mscale, mscale_all = number_of(arguments, "mscale", 1.0), number_of(arguments, "mscale_all_dim", 0.0)
    if factor < 1:
        raise _unsupported(f"rotary_scaling_factor {factor:g}, which is below 1")
    if "rope_type" not in arguments:
        raise _unsupported("scaled positions of a release before core_v0.14, which count from another length")
    if min(mscale, mscale_all) < 0 or (not (mscale and mscale_all) and (mscale, mscale_all) != (1, 0)):
        raise _unsupported(f"mscale {mscale:g} and mscale_all_dim {mscale_all:g}")
    scaling = {"type": "yarn", "factor": factor, "original_max_position_embeddings": _LENGTH}
    both = {"mscale": mscale, "mscale_all_dim": mscale_all} if mscale_all else {}
    return {**found, "rope_scaling": {**scaling, **both}}


def _unsupported(what: str) -> UserError:
    return UserError(
        f"the checkpoint's latent attention has {what}, which is not imported; imported are rope_type rope, and yarn "
        "with a factor from 1 where mscale and mscale_all_dim are both set, or 1 and 0",
        code="latent_scaling_not_imported",
    )


def _network(model: Any) -> dict[str, Any]:
    if not model.has_latent_attention:
        return dict.fromkeys(LatentAttentionSpec.model_fields)
    return {"kv_channels": None}


FLAGS = BlockFlags(
    translated=(
        FlagGroup(
            {LATENT: 0, **dict.fromkeys((*_WIDTHS, _ROPE_TYPE, _FACTOR, _MSCALE, _MSCALE_ALL), 1)},
            read,
            write,
            (*_WIDTHS.values(), SCALING),
        ),
    ),
    patterns=(FlagPattern("cache-mla-latents", INFERENCE, "none"),),
    arguments=CheckpointArguments(
        "multi_latent_attention",
        "has_latent_attention",
        tuple(LatentAttentionSpec.model_fields),
        _to_fields,
        keys=(
            StoredKey(f"{_KV}down_proj.layer_norm_", "input_layernorm.", "input_layernorm."),
            StoredKey("self_attention.kv_layernorm.", f"{_KV}up_proj.layer_norm_", "self_attention.kv_layernorm."),
            StoredKey("self_attention.q_layernorm.", f"{_Q}up_proj.layer_norm_", "self_attention.q_layernorm."),
        ),
        has_local_layers=False,
        states={f"{matrix}down_proj.": f"{matrix}up_proj." for matrix in (_KV, _Q)},
    ),
    not_imported={"mla_down_proj_fusion": "the matrices to both latents in one"},
    network=_network,
)
