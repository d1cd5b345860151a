"""What a node can find out about itself."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from orchestrator.errors import UserError
from orchestrator.fields.values import resolve_environment
from orchestrator.quantities import disk_size
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.health import forked_call
from orchestrator.runtime.health.verdict import Facts, Limits
from orchestrator.spec.loading import load_resolved

_PROBE = os.urandom(1 << 16)
_LEAST_SECONDS = 1.0


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU."""

    free: int
    total: int


def check_node(run: RunDir, name: str, limits: Limits, seconds: float) -> Facts:
    """Look at this node, for so many seconds; what hangs is a fault too. Sets the environment of the job."""
    deadline = time.monotonic() + seconds
    faults: list[str] = []

    def ask(what: str, function: Callable[[], Any]) -> Any:
        try:
            return forked_call.call(function, max(_LEAST_SECONDS, deadline - time.monotonic()))
        except TimeoutError as error:
            faults.append(f"hangs when {what} is checked ({error})")
        except forked_call.CallFailedError as error:
            faults.append(f"fails when {what} is checked: {error}")
        return None

    needs = ask("the run directory", partial(read_needs, run)) or {}
    if "fault" in needs:
        faults.append(needs["fault"])
    os.environ.update(needs.get("environment", {}))
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    # A run directory that cannot be read was named above.
    folders = {run.path: limits.free_disk} if "device" in needs else {}
    for folder, least in {**folders, temporary: limits.free_tmp}.items():
        faults += ask(str(folder), partial(folder_faults, folder, least)) or []
    device, gpus = needs.get("device", "auto"), 0
    if device != "cpu":
        seen = ask("each GPU", partial(check_gpus, limits.free_memory)) or {"gpus": 0, "faults": []}
        gpus = seen["gpus"]
        faults += seen["faults"]
    return Facts(name, tuple(faults), device, gpus, needs.get("gpus", 0))


def read_needs(run: RunDir) -> dict[str, Any]:
    """What the job asks of a node: device, gpus, environment. Or a `fault`: this node does not see the run."""
    try:
        job = load_resolved(run.resolved())
        environment = {name: resolve_environment(value) for name, value in job.launch.env.items()}
    except (OSError, UserError) as error:
        return {"fault": f"cannot read the run directory: {forked_call.one_line(error)}"}
    return {"device": job.runtime.device, "gpus": job.processes_per_node, "environment": environment}


def folder_faults(folder: Path, least_free: int) -> list[str]:
    """Whether a file can be written there and read again, and whether enough bytes are free."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(_PROBE)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            if file.read() != _PROBE:
                return [f"reads other data from {folder} than it wrote"]
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [f"cannot write in {folder} ({error.strerror})"]
    if free < least_free:
        return [f"has only {disk_size(free)} free in {folder}, {disk_size(least_free)} are needed"]
    return []


def check_gpus(least_free: float) -> dict[str, Any]:
    """How many GPUs this process sees, and what is wrong with them: not computing, or memory that is taken."""
    memory = gpu_memory()
    faults = [
        f"has only {gpu.free / 1e9:.1f} of {gpu.total / 1e9:.1f} GB free on GPU {index}"
        for index, gpu in enumerate(memory)
        if gpu.free < least_free * gpu.total
    ]
    return {"gpus": len(memory), "faults": faults}


def gpu_memory() -> list[GpuMemory]:
    """The memory of each GPU that this process sees, after each has computed something right.

    Raises RuntimeError, naming the GPU, when one does not.
    """
    found = []
    for index in range(torch.cuda.device_count()):
        try:
            free, total = torch.cuda.mem_get_info(index)
            ones = torch.ones(256, 256, device=torch.device("cuda", index))
            computed = float((ones @ ones).sum())
        except RuntimeError as error:
            raise RuntimeError(f"GPU {index}: {forked_call.one_line(error)}") from error
        if computed != 256**3:
            raise RuntimeError(f"GPU {index} computes wrongly")
        found.append(GpuMemory(free, total))
    return found
