"""The memory of a rank, by part, before anything is started.

`estimate_memory` gives for each pipeline stage the bytes by part at its fullest moment. They add up to `peak_bytes`,
what `torch.cuda.max_memory_allocated` reports; `device_bytes` adds estimates of what torch does not count. It takes
any job, rules kept or not, in well under 1 ms.
"""

from orchestrator.planning.memory.fit import capacity
from orchestrator.planning.memory.stages import Memory, StageMemory, estimate_memory, offloaded_bytes

__all__ = ["Memory", "StageMemory", "capacity", "estimate_memory", "offloaded_bytes"]
