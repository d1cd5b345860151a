"""What the devices of one machine send to each other: a process for each, over the backend that training uses."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.runtime.calibration.kernels import synchronize

_REPEATS = 5
_SMALL_REPEATS = 50
_TIMEOUT = timedelta(seconds=120)


def measure_links(count: int, gather_bytes: int, *, on_gpus: bool) -> dict[str, Any]:
    """Seconds in which `count` processes all-gather `gather_bytes` bytes and reduce-scatter them, and of the shortest
    all-reduce. Raises RuntimeError when they cannot talk.
    """
    # CUDA does not survive a fork; without it one saves each process the import of torch.
    method = "spawn" if on_gpus else "fork"
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        # One process that fails ends the others, with its traceback. It has no types, and torch's stubs lack its name.
        torch.multiprocessing.start_processes(  # type: ignore[no-untyped-call,attr-defined]
            _rank, args=(count, gather_bytes, folder, on_gpus), nprocs=count, start_method=method
        )
        found: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return found


def _rank(rank: int, count: int, gather_bytes: int, folder: str, on_gpus: bool) -> None:
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=_TIMEOUT,
    )
    try:
        share = torch.ones(gather_bytes // 4 // count, device=device)
        whole = torch.empty(share.numel() * count, device=device)
        one = torch.ones(1, device=device)
        result = {
            "processes": count,
            "bytes": whole.nbytes,
            "gather_seconds": _fastest(lambda: dist.all_gather_into_tensor(whole, share), device, _REPEATS),
            "scatter_seconds": _fastest(lambda: dist.reduce_scatter_tensor(share, whole), device, _REPEATS),
            "latency_seconds": _fastest(lambda: dist.all_reduce(one), device, _SMALL_REPEATS),
        }
        if rank == 0:
            (Path(folder) / "result.json").write_text(json.dumps(result))
    finally:
        dist.destroy_process_group()


def _fastest(work: Any, device: torch.device, repeats: int) -> float:
    """The first call connects and is not counted."""
    work()
    synchronize(device)
    best = float("inf")
    for _ in range(repeats):
        dist.barrier()
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
