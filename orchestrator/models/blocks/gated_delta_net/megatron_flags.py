"""Linear attention in some layers: flags that mean something beside --experimental-attention-variant only."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import UserError
from orchestrator.fields.flag_values import FREQUENCY
from orchestrator.models.blocks.flags import BlockFlags, FlagGroup, FlagWriter, GivenFlags

VARIANT, FREQ, LAYERS = "experimental-attention-variant", "linear-attention-freq", "model.linear_attention_freq"
_DELTA = "gated_delta_net"
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
    for flag, path in _WIDTHS.items():
        value = writer.value(path)
        if value != writer.default(path):
            writer.add("MODEL", flag, value)


def require_exportable(job: Any) -> None:
    """Raises UserError for a job whose network no checkpoint for Megatron-LM holds."""
    if job.model.has_linear_attention:
        raise UserError(
            f"{job.name} has linear attention (model.linear_attention_freq), which checkpoints for Megatron-LM do not "
            "support: export it --to hf",
            code="linear_attention_not_in_megatron",
        )


FLAGS = BlockFlags(
    translated=(FlagGroup(dict.fromkeys((VARIANT, FREQ, *_WIDTHS), 1), read, write, (LAYERS, *_WIDTHS.values())),),
    not_imported={
        "linear_attention_freq": "linear attention",
        "experimental_attention_variant": "another attention",
    },
    require_exportable=require_exportable,
)
