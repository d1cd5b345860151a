"""Step times without a profiler, then one step with it: what `orchestrator bench` measures."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from orchestrator.planning.flops import formula, full_flops, model_flops, peak_flops
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime.bench.setup import setup_of
from orchestrator.runtime.bench.trace import ANNOTATION, END, breakdown, read_trace
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.layers.grouped_experts.expert_mlp import expert_products
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.session import Session

_CUDA: Any = torch.cuda  # much of it has no types
PROFILED = 3
"""Steps of a profile: the profiler warms up in the first, the second follows it without a gap, the third counts."""


class Benchmark(Callback):
    """Times `steps` steps after `warm_up` ones, profiles one more, and with `keep_trace` another with all that torch
    does on the host. Rank 0 writes what all ranks found as soon as they have it: what fails later takes nothing away.
    """

    def __init__(self, run: RunDir, warm_up: int, steps: int, *, keep_trace: bool) -> None:
        self._run, self._warm_up, self._steps, self._keep_trace = run, warm_up, steps, keep_trace
        self._count = 0
        self._moments: list[Any] = []
        self._marks: list[str] = []
        self._profiler: profile | None = None
        self._found: dict[str, Any] = {}

    def on_start(self, session: Session) -> None:
        if session.processes.ranks.is_first:
            self._run.bench.mkdir(exist_ok=True)
        if session.network.captured is not None:
            _prepare_for_graphs()
        session.processes.control.barrier()

    def on_step(self, session: Session) -> None:
        self._count += 1
        timed = self._count - self._warm_up
        if 0 <= timed <= self._steps:
            self._moments.append(_moment(on_gpu=session.processes.device.is_cuda))
        profiled = timed - self._steps
        traced = profiled - PROFILED
        if profiled == 0:
            self._found = {"step_seconds": self._step_seconds(session), **_memory(session.processes.device)}
            self._write(session)
        if 0 <= profiled <= PROFILED:
            self._profile(session, profiled)
        if profiled == PROFILED:
            self._write(session)
        if 0 <= traced <= PROFILED and self._keep_trace and session.processes.device.is_cuda:
            self._trace(session, traced)

    def on_stop(self, session: Session) -> None:
        if self._profiler is not None:
            self._profiler.stop()

    def _write(self, session: Session) -> None:
        """What all ranks have found so far."""
        session.wait_for_all_reduce()
        ranks = session.processes.ranks
        own = {"rank": ranks.rank, "pp": ranks.pp, "tp": ranks.tp, "dp": ranks.dp, "cp": ranks.cp, **self._found}
        gathered = session.processes.control.gather_to_first(own)
        if gathered is not None:
            write_atomically(self._run.bench_result, json.dumps({**_job_facts(session), "ranks": gathered}))

    def _step_seconds(self, session: Session) -> list[float]:
        """From the end of each step's work to that of the next; on a GPU by its own clock, so that nobody waits."""
        moments = self._moments
        if not session.processes.device.is_cuda:
            return [after - before for before, after in itertools.pairwise(moments)]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(moments)]

    def _profile(self, session: Session, number: int) -> None:
        """`number`: how many of the profiled steps are done."""
        on_gpu = session.processes.device.is_cuda
        if number == 0:
            # Operations on the host are left out where kernels tell more: noting them slows the host.
            self._start([ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU])
            return
        assert self._profiler is not None
        if number == 1:
            self._profiler.step()
            session.mark = lambda moment: self._mark(moment, on_gpu=on_gpu)
        session.mark(END)
        if number < PROFILED:
            return
        session.mark = _unmarked
        session.wait_for_all_reduce()
        path = self._run.bench / f"trace-{session.processes.ranks.rank}.json"
        self._stop(path, on_gpu=on_gpu)
        self._found["profile"] = breakdown(
            read_trace(path, on_gpu=on_gpu),
            self._marks,
            on_gpu=on_gpu,
            is_alone=session.processes.ranks.world_size == 1,
        )
        kept = self._keep_trace and session.processes.ranks.is_first and not on_gpu
        path.replace(self._run.bench_trace) if kept else path.unlink()

    def _trace(self, session: Session, number: int) -> None:
        """The same once more on rank 0, with what torch does on the host. `number`: how many of its steps are done."""
        if number == PROFILED:
            session.wait_for_all_reduce()
        if not session.processes.ranks.is_first:
            return
        if number == 0:
            self._start([ProfilerActivity.CPU, ProfilerActivity.CUDA])
        if number == 1:
            assert self._profiler is not None
            self._profiler.step()
        if number == PROFILED:
            self._stop(self._run.bench_trace, on_gpu=True)

    def _start(self, activities: Sequence[ProfilerActivity]) -> None:
        self._profiler = profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=PROFILED - 1))
        self._profiler.start()

    def _stop(self, path: Path, *, on_gpu: bool) -> None:
        """The caller has settled what the ranks exchange beside the step: a gloo operation that ends after the profiler
        writes into what is no longer there.
        """
        assert self._profiler is not None
        if on_gpu:
            torch.cuda.synchronize()
        self._profiler.stop()
        self._profiler.export_chrome_trace(str(path))
        self._profiler = None

    def _mark(self, moment: str, *, on_gpu: bool) -> None:
        self._marks.append(moment)
        if on_gpu:
            _CUDA._sleep(1)  # a kernel of its own name: the moment in the GPU's own time
        else:
            with record_function(ANNOTATION + moment):
                pass


def _prepare_for_graphs() -> None:
    """A profile fails where a graph was captured before the first of the process (pytorch/pytorch#75504)."""
    with profile(activities=[ProfilerActivity.CUDA]):
        torch.cuda.synchronize()


def _unmarked(moment: str) -> None:
    """Outside of a profile nothing is marked."""


def _moment(*, on_gpu: bool) -> Any:
    if not on_gpu:
        return time.perf_counter()
    event = _CUDA.Event(enable_timing=True)
    event.record()
    return event


def _memory(device: Device) -> dict[str, int | None]:
    """Bytes that torch had allocated and reserved at most, and that were taken on the GPU by whomever."""
    if not device.is_cuda:
        return {"peak_bytes": None, "reserved_bytes": None, "used_bytes": None}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": total - free,
    }


def _job_facts(session: Session) -> dict[str, Any]:
    job, words = session.job, session.data.vocabulary.padded_size
    tokens = job.global_batch_size * job.tokens_per_sample
    return {
        "device": session.processes.device.name,
        "layers": session.network.layers,
        "padded_vocab": words,
        "tokens_per_step": tokens,
        "flops_per_step": model_flops(job, tokens, words),
        "full_flops_per_step": full_flops(job, tokens, words),
        "formula": formula(job),
        "peak_flops": peak_flops(session.processes.device.name, job.precision.dtype),
        "dtype": job.precision.dtype,
        "products": job.precision.products,
        "expert_products": expert_products(job, session.network.modules[0].config, session.network.layers),
        "setup": setup_of(session),
    }
