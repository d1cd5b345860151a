"""All pairs of nodes, and the all-reduce between two of them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_CPU_BYTES = 4 << 20
_GPU_BYTES = 64 << 20
_REPEATS = 3
# NCCL's own watchdog would end the process with a long trace; the caller's limit comes first.
_NEVER = timedelta(days=1)


def rounds_of(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of `count` nodes once, in rounds in which no node occurs twice: a round-robin tournament.

    An even number of nodes takes count - 1 rounds, an odd one `count`.
    """
    if count < 2:
        return []
    players: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        facing = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


def exchange(store: Any, rank: int, number: int, seconds: float) -> float:
    """All-reduce with the other node as `rank` (0 or 1) of two, meeting in `store`. Returns GB/s: bytes of the tensor
    over the seconds of the fastest of a few.

    With GPUs it is NCCL on GPU `number` modulo their count, so that rounds take turns; else gloo. Raises RuntimeError
    when it fails or gives a wrong sum; with NCCL it may hang instead.
    """
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(number % gpus)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NEVER
        group: Any = dist.ProcessGroupNCCL(store, rank, 2, options)
        tensor = torch.empty(_GPU_BYTES // 4, device="cuda")
    else:
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=seconds))
        tensor = torch.empty(_CPU_BYTES // 4)
    fastest = float("inf")
    for _ in range(1 + _REPEATS):  # the first one connects
        tensor.fill_(rank + 1)
        started = time.perf_counter()
        group.allreduce([tensor]).wait()
        if gpus:
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - started)
        if not bool((tensor == 3).all()):
            raise RuntimeError("the all-reduce gave a wrong sum")
    return tensor.nbytes / fastest / 1e9
