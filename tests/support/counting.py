"""Code for a rank whose matrix products torch counts while it trains: their FLOPs are an event. Nothing is saved."""

from __future__ import annotations

COUNTED = """
import orchestrator.runtime.__main__ as program
from orchestrator.plain_megatron import leave_alone_from_the_start
from orchestrator.run_directory.events.types import Unknown
from orchestrator.runtime.callbacks.saving import CheckpointSaving
from torch.utils.flop_counter import FlopCounterMode

whole = program.train

def train(session, callbacks):
    with FlopCounterMode(display=False) as counter:
        leave_alone_from_the_start(type(counter.mode))
        outcome = whole(session, callbacks)
    found = counter.get_flop_counts()["Global"]
    products = sum(count for name, count in found.items() if "attention" not in str(name))
    session.event(Unknown(stored_name="counted", other={"products": products}))
    return outcome

program.train = train
CheckpointSaving.on_end = lambda saving, session: None
"""
"""The event `counted` has `products`: those of attention are not among them."""
