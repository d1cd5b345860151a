"""The memory of a rank, by part, before anything is started.

For each pipeline stage, `estimate_memory` gives the bytes by part at its peak. They add up to `peak_bytes`, which
`torch.cuda.max_memory_allocated` reports; `device_bytes` adds estimates of what torch does not count. It accepts any
job, even one that breaks rules, and takes well under 1 ms.
"""

from orchestrator.planning.memory.fit import capacity
from orchestrator.planning.memory.stages import Memory, StageMemory, estimate_memory, offloaded_bytes

__all__ = ["Memory", "StageMemory", "capacity", "estimate_memory", "offloaded_bytes"]
