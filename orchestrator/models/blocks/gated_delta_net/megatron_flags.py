"""Linear attention in some layers: flags that mean something beside --experimental-attention-variant only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError
from orchestrator.fields.flag_values import FREQUENCY
from orchestrator.fields.paths import CP
from orchestrator.models.blocks.flags import (
    BlockFlags,
    CheckpointArguments,
    FlagGroup,
    FlagWriter,
    GivenFlags,
    StoredRows,
)
from orchestrator.models.blocks.gated_delta_net.fields import GatedDeltaNetSpec
from orchestrator.models.blocks.gated_delta_net.parameters import key_width, value_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields

VARIANT, FREQ, LAYERS = "experimental-attention-variant", "linear-attention-freq", "model.linear_attention_freq"
_DELTA = "gated_delta_net"
_ALIKE = "Megatron-LM's gated delta net has the model's norm and activation, and here RMSNorm and SiLU"
_WIDTHS = {
    "linear-num-key-heads": "model.linear_num_key_heads",
    "linear-num-value-heads": "model.linear_num_value_heads",
    "linear-key-head-dim": "model.linear_key_head_dim",
    "linear-value-head-dim": "model.linear_value_head_dim",
    "linear-conv-kernel-dim": "model.linear_conv_kernel_dim",
}


def read(given: GivenFlags) -> None:
    if not given.has(VARIANT):
        given.no_effect(tuple(_WIDTHS), f"it goes with --{VARIANT}")
        if given.has(FREQ):
            given.another_training(FREQ, f"it goes with --{VARIANT} {_DELTA}: write both, or leave it out")
        return
    if given.text(VARIANT) != _DELTA:
        given.no_effect((FREQ, *_WIDTHS), f"it goes with --{VARIANT} {_DELTA}")
        given.another_training(VARIANT, "this kind of attention is not in this version")
        return
    if not given.has(FREQ):
        given.write_it(VARIANT, LAYERS, f"Megatron-LM needs --{FREQ} too")
    else:
        given.settle(VARIANT, "carried", LAYERS)
        _read_layers(given)
    for flag, path in _WIDTHS.items():
        value = given.number(flag)
        if given.has(flag) and not value:
            given.write_it(flag, path)
        elif given.has(flag):
            given.carry(flag, path, value)
    if (given.get("model.normalization"), given.get("model.activation")) != ("RMSNorm", "swiglu"):
        given.note(f"{_ALIKE}: to train as the script does, it needs --normalization RMSNorm and --swiglu")


def _read_layers(given: GivenFlags) -> None:
    try:
        layers = FREQUENCY.read(given.text(FREQ) or "")
    except ValueError as error:
        given.write_it(FREQ, LAYERS, str(error))
    else:
        given.carry(FREQ, LAYERS, layers)


def write(writer: FlagWriter) -> None:
    model = writer.job.model
    if not model.has_linear_attention:
        return
    writer.add("MODEL", VARIANT, _DELTA)
    writer.add("MODEL", FREQ, FREQUENCY.write(model.linear_attention_freq))
    if writer.job.runtime.layers == "torch":
        writer.take_back("transformer-impl")
        writer.say_otherwise("runtime.layers", "Megatron-LM has linear attention with Transformer Engine only")
    for flag, path in _WIDTHS.items():
        value = writer.value(path)
        if value != writer.default(path):
            writer.add("MODEL", flag, value)
    if writer.job.parallelism.context_parallel_size > 1:
        writer.take_back("context-parallel-size")
        writer.unsaid_value(CP, "Megatron-LM has no context parallelism with linear attention")
    for path, value in (("model.normalization", "RMSNorm"), ("model.activation", "swiglu")):
        if writer.value(path) != value:
            writer.unsaid_value(path, _ALIKE)


def _to_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """No further ones. Raises UserError for a gated delta net with another norm or activation than here."""
    if arguments.get("normalization") != "RMSNorm" or not arguments.get("swiglu"):
        raise UserError(
            f"the checkpoint's linear attention is not imported: {_ALIKE}; it has normalization "
            f"{str(arguments.get('normalization'))[:40]} and swiglu {bool(arguments.get('swiglu'))}",
            code="linear_attention_not_imported",
        )
    return {}


def _convolved_rows(model: DeltaFields) -> tuple[int, ...]:
    return key_width(model), key_width(model), value_width(model)


def _projected_rows(model: DeltaFields) -> tuple[int, ...]:
    heads = model.linear_num_value_heads
    return *_convolved_rows(model), value_width(model), heads, heads


def _key_heads(model: DeltaFields) -> int:
    return model.linear_num_key_heads


def _network(model: DeltaFields) -> dict[str, Any]:
    if not model.has_linear_attention:
        return dict.fromkeys(GatedDeltaNetSpec.model_fields)
    return {"linear_attention_freq": [int(has) for has in model.linear_attention_layers]}


FLAGS = BlockFlags(
    translated=(FlagGroup(dict.fromkeys((VARIANT, FREQ, *_WIDTHS), 1), read, write, (LAYERS, *_WIDTHS.values())),),
    arguments=CheckpointArguments(
        "experimental_attention_variant",
        "has_linear_attention",
        tuple(GatedDeltaNetSpec.model_fields),
        _to_fields,
        has_local_layers=False,
        rows=(
            StoredRows(
                "self_attention.in_proj.weight",
                ("query", "key", "value", "z", "beta", "alpha"),
                _projected_rows,
                _key_heads,
            ),
            StoredRows("self_attention.conv1d.weight", ("query", "key", "value"), _convolved_rows, _key_heads),
        ),
        zero_centred="self_attention.out_norm.weight",
    ),
    not_imported={"experimental_attention_variant": "another attention"},
    imported={"experimental_attention_variant": (_DELTA,)},
    network=_network,
)
