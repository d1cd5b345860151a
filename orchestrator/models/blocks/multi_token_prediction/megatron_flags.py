"""Multi-token prediction: the weight of its losses means something beside --mtp-num-layers only."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.models.blocks.flags import (
    BlockFlags,
    CheckpointArguments,
    FlagGroup,
    FlagPattern,
    FlagsWithoutField,
    FlagWriter,
    GivenFlags,
    all_but,
)

_COUNT, _WEIGHT = "mtp-num-layers", "mtp-loss-scaling-factor"
LAYERS, WEIGHT = "model.mtp_num_layers", "model.mtp_loss_scaling_factor"


def read(given: GivenFlags) -> None:
    count = given.number(_COUNT)
    if given.has(_COUNT) and count is None:
        given.write_it(_COUNT, LAYERS)
    elif count is not None:
        given.carry(_COUNT, LAYERS, count)
    if not given.has(_COUNT) or count == 0:
        given.no_effect(_WEIGHT, f"it goes with --{_COUNT}")
    if not given.has(_WEIGHT) or given.is_settled(_WEIGHT):
        return
    with suppress(ValueError):
        if (weight := float(given.text(_WEIGHT) or "")) >= 0:
            given.carry(_WEIGHT, WEIGHT, weight)
    if not given.is_settled(_WEIGHT):
        given.write_it(_WEIGHT, WEIGHT)


def write(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.predicts_further:
        writer.add("MODEL", _COUNT, model.mtp_num_layers)
        writer.add("MODEL", _WEIGHT, model.mtp_loss_scaling_factor)


_TOGETHER = FlagGroup({_COUNT: 1, _WEIGHT: 1}, read, write, (LAYERS, WEIGHT))
_OPTION = "this option of multi-token prediction is not in this version"
FLAGS = BlockFlags(
    translated=(_TOGETHER,),
    without_field=(FlagsWithoutField("mtp-detach-heads mtp-use-repeated-layer mtp-standalone", _OPTION, "training"),),
    patterns=(FlagPattern(all_but("mtp-", _TOGETHER.flags), _OPTION, "training"),),
    arguments=CheckpointArguments("mtp_num_layers", "predicts_further", ("mtp_num_layers", "mtp_loss_scaling_factor")),
    not_imported={"mtp_use_repeated_layer": "one layer for all further tokens"},
)
