"""The loop over megatron-core itself that ours is measured beside."""

from __future__ import annotations

from pathlib import Path

from support.measured import WARM_UP, Meter
from support.ranks import RankStarter

_PLAIN_LOOP = Path(__file__).parents[1] / "benchmarks" / "plain_loop.py"


def peer_meter(starter: RankStarter, scratch: Path, kept: Path | None = None, warm_up: int = WARM_UP) -> Meter:
    """Measures it, as a `Meter` measures ours; it needs a folder of its own for what is kept."""
    return Meter(starter, scratch, kept, program=_PLAIN_LOOP, warm_up=warm_up)
