"""Code for a rank whose matrix products torch counts while it trains; their FLOPs become an event."""

from __future__ import annotations

COUNTED = """
import orchestrator.runtime.__main__ as program
from orchestrator.run_directory.events.types import Unknown
from torch.utils.flop_counter import FlopCounterMode

whole = program.train

def train(session, callbacks):
    with FlopCounterMode(display=False) as counter:
        outcome = whole(session, callbacks)
    found = counter.get_flop_counts()["Global"]
    products = sum(count for name, count in found.items() if "attention" not in str(name))
    session.event(Unknown(stored_name="counted", other={"products": products}))
    return outcome

program.train = train
"""
"""The event `counted` has `products`: those of attention are not among them."""
