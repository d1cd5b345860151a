"""How many threads each of four groups adds, of which three share a device, and what their sums are."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
import torch.distributed as dist

from orchestrator.runtime.processes.gloo import few_threads


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def summed(group: dist.ProcessGroup) -> float:
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return one.item()


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    counts = [threads()]
    with few_threads():
        groups = []
        for _ in range(3):
            groups.append(dist.new_group(backend="gloo"))
            counts.append(threads())
    groups.append(dist.new_group(backend="gloo"))
    counts.append(threads())
    print(*(after - before for before, after in itertools.pairwise(counts)))
    print(*map(summed, groups))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
