"""Multi-token prediction: the weight of its losses means something beside --mtp-num-layers only."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.migration.combined_flags.base import FlagGroup
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags

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
    if not given.has(_WEIGHT) or _WEIGHT in given.settled:
        return
    with suppress(ValueError):
        if (weight := float(given.text(_WEIGHT) or "")) >= 0:
            given.carry(_WEIGHT, WEIGHT, weight)
    if _WEIGHT not in given.settled:
        given.write_it(_WEIGHT, WEIGHT)


def write(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.predicts_further:
        writer.add("MODEL", _COUNT, model.mtp_num_layers)
        writer.add("MODEL", _WEIGHT, model.mtp_loss_scaling_factor)


PREDICTIONS = (FlagGroup({_COUNT: 1, _WEIGHT: 1}, read, write, (LAYERS, WEIGHT)),)
