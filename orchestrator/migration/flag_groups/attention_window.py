"""Windows of attention, and the layers that have them."""

from __future__ import annotations

from orchestrator.fields.flag_values import FREQUENCY
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.blocks.flags import FlagGroup

WINDOW, SKIP = "model.sliding_window", "model.window_attn_skip_freq"


def read_window(given: GivenFlags) -> None:
    name, skip = "window-size", "window-attn-skip-freq"
    if not given.has(name):
        given.no_effect(skip, "Megatron-LM takes it with --window-size only")
        return
    sizes = (given.text(name) or "").strip("()[] ").replace(" ", "").split(",")
    if len(sizes) == 2 and sizes[0] == "-1":
        given.settle(name, "default", WINDOW)
        given.no_effect(skip, "there is no window")
        return
    if given.family.trains.is_masked_lm and len(set(sizes)) > 1:
        given.refuse_value(name, WINDOW, "a BERT's window has as many tokens before as after")
    elif len(sizes) == 2 and all(size.isascii() and size.isdigit() and len(size) < 10 for size in sizes):
        given.carry(name, WINDOW, int(sizes[0]) + 1)
    else:
        given.write_it(name, WINDOW, "two whole numbers are expected: tokens before and after")
    if not given.has(skip):
        return
    try:
        layers = FREQUENCY.read(given.text(skip) or "")
    except ValueError as error:
        given.write_it(skip, SKIP, str(error))
    else:
        given.carry(skip, SKIP, layers)


def write_window(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.window_size is not None:
        before, after = model.window_size
        writer.add("MODEL", "window-size", f"{before},{after}")
        if model.window_attn_skip_freq is not None:
            writer.add("MODEL", "window-attn-skip-freq", FREQUENCY.write(model.window_attn_skip_freq))


ATTENTION_WINDOW = (
    FlagGroup({"window-size": 1, "window-attn-skip-freq": 1}, read_window, write_window, (WINDOW, SKIP)),
)
