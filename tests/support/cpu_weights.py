"""A GPU draws other numbers than the CPU: what lets a training on either begin with the CPU's."""

from __future__ import annotations

ON_THE_CPU = """
from orchestrator.runtime.network import initialization
_slice_of_whole = initialization._slice_of_whole
def slice_of_whole(shard, *rest):
    data = shard.data
    shard.data = data.cpu()
    try:
        return _slice_of_whole(shard, *rest).to(data.device)
    finally:
        shard.data = data
initialization._slice_of_whole = slice_of_whole
"""
"""To be injected into ranks."""
