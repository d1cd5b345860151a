"""One rank of what `measured.py` measures: the training program without saving, evaluation and tracking.

Its argument is a file that names run directories, a line each: one job after the other in the same process, which
imports, starts CUDA and compiles once. Of each, every rank writes its steps and its memory to `measured-RANK.json`, or
that it ran out of memory, which ends it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime.__main__ import write_log_to_run
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.loop import train
from orchestrator.runtime.optimizers.offloaded_adam import OffloadedAdam
from orchestrator.runtime.processes.device import Device, select_device
from orchestrator.runtime.processes.process_groups import stop_process_groups
from orchestrator.runtime.records.start_clock import StartClock
from orchestrator.runtime.session import Session
from orchestrator.runtime.startup import open_session
from orchestrator.spec.loading import load_resolved

_LEFT = 2**28
"""Bytes that may stay allocated after a job; with more than that the next one would not be measured alone."""
_OUT_OF_MEMORY = ("out of memory", "failed to cuda calloc")
"""What torch and CUDA, and what NCCL says, in small letters."""
_PATIENCE = 60
"""Seconds that the others may take to write what they measured."""


class Steps(Callback):
    """Notes each step. The loss of the last one is agreed on as well, so that its work is done."""

    def __init__(self, device: Device) -> None:
        self.seconds: list[float] = []
        self.intervals: list[float] = []
        self.losses: list[float] = []
        self.grad_norms: list[float] = []
        self.outside: list[int] = []
        """Bytes on the GPU that torch's allocator does not hold, after each step."""
        self._device = device
        self._ended: float | None = None

    def on_loss(self, session: Any, record: Any, losses: Any) -> None:
        self.seconds.append(record.seconds)
        self.intervals.append(record.ended - (self._ended or record.ended - record.seconds))
        self._ended = record.ended
        self.losses.append(losses.total)
        self.grad_norms.append(record.grad_norm)
        if self._device.is_cuda and len(self.seconds) in (1, session.data.schedule.train_iters):
            self.outside.append(outside())


def main() -> int:
    """Train as one rank. 0 when all steps of all jobs were done; 1 when one failed or left something behind."""
    runs = [RunDir(Path(line)) for line in Path(sys.argv[1]).read_text().splitlines()]
    rank = int(os.environ["RANK"])
    runtime = load_resolved(runs[0].resolved()).runtime
    device = select_device(runtime.device, threads=runtime.threads_per_rank)
    if device.is_cuda:  # elsewhere nothing is compiled, and the compiler takes half a second to import
        torch._dynamo.config.recompile_limit = 1000
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    meeting = _store(address, port, is_master=rank == 0)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # rank 0 opens no store of its own: each job finds one here
    stores = []
    for index, run in enumerate(runs):
        if rank == 0:
            stores.append(_store(address, 0, is_master=True))
            meeting.set(str(index), str(stores[-1].port))
        os.environ["MASTER_PORT"] = meeting.get(str(index)).decode()
        write_log_to_run(run, rank)
        try:
            measure(run, rank, device)
        except Exception as error:
            traceback.print_exc()
            if any(words in str(error).lower() for words in _OUT_OF_MEMORY):
                write_atomically(run.path / f"measured-{rank}.json", json.dumps({"out_of_memory": str(error)}))
            return 1
        if left_behind() > _LEFT and index + 1 < len(runs):
            await_the_others(run)  # who ends with 1 ends them
            return 1
    return 0


def _store(address: str, port: int, *, is_master: bool) -> Any:
    store: Any = vars(distributed)["TCPStore"]
    return store(address, port, None, is_master, wait_for_workers=False)


def measure(run: RunDir, rank: int, device: Device) -> None:
    """Run a job and write what it needed."""
    began = time.time()
    job = load_resolved(run.resolved())
    if device.is_cuda:
        # Every job gets the shapes that it would get in a process of its own; those of experts vary from step to step.
        torch._dynamo.config.automatic_dynamic_shapes = job.model.num_experts is not None
    steps, before = Steps(device), outside() if device.is_cuda else 0
    with contextlib.ExitStack() as closing:
        session = open_session(run, job, device, "measured", False, closing, StartClock())
        opened = time.time()
        train(session, [steps])
        if device.is_cuda:
            torch.cuda.synchronize()
        # Nobody leaves while another's last collective may still read this one's memory.
        distributed.barrier(session.processes.groups.control)
        steps_found = {"seconds": steps.seconds, "intervals": steps.intervals, "losses": steps.losses}
        found = {
            **steps_found,
            "grad_norms": steps.grad_norms,
            "layers": session.network.layers,
            "device": device.name,
            **_memory(device.is_cuda),
        }
    trained = time.time()
    stop_process_groups()
    give_up_memory(session)
    if job.precision.fp8 is not None:
        # Delayed scaling sums its largest values once more over the groups that were.
        importlib.import_module("transformer_engine.pytorch.fp8").FP8GlobalStateManager.reset()
    del session, steps.__dict__["_device"]
    print(
        f"seconds to open {opened - began:.1f}, to train {trained - opened:.1f} (steps {sum(steps.seconds):.1f}, the "
        f"first {steps.seconds[0]:.1f}), to end {time.time() - trained:.1f}; outside of torch's allocator "
        f"{before >> 20} MiB before, {[each >> 20 for each in steps.outside]} after the first and the last step",
        flush=True,
    )
    write_atomically(run.path / f"measured-{rank}.json", json.dumps(found))


def await_the_others(run: RunDir) -> None:
    """Until all ranks have written what they measured, or one will not."""
    until, ranks = time.monotonic() + _PATIENCE, range(int(os.environ["WORLD_SIZE"]))
    while not all((run.path / f"measured-{rank}.json").exists() for rank in ranks) and time.monotonic() < until:
        time.sleep(0.01)


def give_up_memory(session: Session) -> None:
    """Free weights, gradients and the optimizer's state. The hooks that data parallelism puts on the weights hold it,
    and with it all of this, where the garbage collector does not see it.
    """
    held: list[Any] = []
    if session.network.captured is not None:
        vars(session.network.captured).clear()
    for chunk in session.network.chunks:
        held += chunk.parameters()
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            held += (each for bucket in buffer.buckets for each in vars(bucket).values())
    for optimizer in session.network.optimizer.chained_optimizers:
        inner = optimizer.optimizer
        held += (weight for group in inner.param_groups for weight in group["params"])
        held += (value for state in inner.state.values() for value in state.values())
        if isinstance(inner, OffloadedAdam):
            transfers = inner.transfers
            held += (each for number in range(len(transfers.blocks)) for each in transfers.on_device(number).values())
    for tensor in held:
        if isinstance(tensor, torch.Tensor):
            tensor.untyped_storage().resize_(0)


def left_behind() -> int:
    """Free what the last job needed; bytes that could not be freed."""
    gc.collect()
    if not torch.cuda.is_available():
        return 0
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    left = torch.cuda.memory_allocated()
    print(f"{left >> 20} MiB are left", flush=True)
    return left


def outside() -> int:
    """Bytes that are taken on this GPU beside what torch's allocator holds."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def _memory(is_cuda: bool) -> dict[str, int]:
    if not is_cuda:
        return {"peak_bytes": 0, "reserved_bytes": 0, "used_bytes": 0}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": total - free,
    }
