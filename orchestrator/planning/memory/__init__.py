"""The memory of a rank, by part, before anything is started."""

from orchestrator.planning.memory.fit import capacity
from orchestrator.planning.memory.stages import Memory, StageMemory, estimate_memory, offloaded_bytes

__all__ = ["Memory", "StageMemory", "capacity", "estimate_memory", "offloaded_bytes"]
