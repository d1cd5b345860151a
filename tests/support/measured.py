"""Measure real steps of jobs on this machine: seconds, and the memory that each pipeline stage needed at most.

A `Meter` starts ranks (`measured_rank.py`) that measure job after job, each set on GPUs of its own, side by side where
they fit. What was measured is kept in a file, so that nothing is measured twice and a call on a borrowed machine
goes on where the last one ended.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from orchestrator.launch.machine import machine_for, versions
from orchestrator.planning.hardware import shipped
from orchestrator.planning.layout.topology import rank_of
from orchestrator.planning.memory import capacity, estimate_memory
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir, append_line, read_lines, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from orchestrator.spec.sections.runtime import Layers
from support.ranks import RankStarter

WARM_UP = 3
"""Steps whose time is not counted, as a rule: the first compiles, and clocks settle."""
_PROGRAM = Path(__file__).with_name("measured_rank.py")
RANK_ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True)
class Measured:
    """What a run needed."""

    outcome: Literal["measured", "out_of_memory", "failed"]
    layers: str = ""
    device: str = ""
    step_seconds: float = 0.0
    """Median over the steps after the warm-up, of the slowest rank."""
    interval_seconds: float = 0.0
    """The same from the end of a step to the end of the next: with what is done between them."""
    spread: tuple[float, float] = (0.0, 0.0)
    """Fastest and slowest of these steps."""
    peak_bytes: tuple[int, ...] = ()
    """For each pipeline stage, what its fullest rank had allocated at most during the steps; 0 without CUDA."""
    reserved_bytes: tuple[int, ...] = ()
    """The same for what torch's allocator held."""
    used_bytes: tuple[int, ...] = ()
    """The same for what was taken on the GPU at the end, by whomever: CUDA's context and NCCL's buffers too."""
    losses: tuple[float, ...] = ()
    """Of every step, the warm-up's too."""
    grad_norms: tuple[float, ...] = ()
    """The same for the gradient's norm."""
    message: str = ""
    """Why there is none of this."""


def largest_differences(one: Measured, other: Measured) -> tuple[float, float]:
    """The largest relative difference of two trainings' losses, and of their gradient norms."""
    assert one.losses
    losses, norms = (
        max(abs(a - b) / abs(a) for a, b in zip(first, second, strict=True))
        for first, second in ((one.losses, other.losses), (one.grad_norms, other.grad_norms))
    )
    return losses, norms


def padded_vocab(job: JobSpec) -> int:
    """Rows of the tables that a job trains."""
    return vocabulary(job).padded_size


class Meter:
    """Measures jobs, each at most once."""

    def __init__(
        self,
        starter: RankStarter,
        scratch: Path,
        kept: Path | None = None,
        *,
        patience: float = 240,
        inject: Path | None = None,
        program: Path = _PROGRAM,
        warm_up: int = WARM_UP,
    ) -> None:
        """`kept`: a folder in which `measured.jsonl` holds what was measured, in earlier processes as well.
        `patience`: seconds that one job may take before it counts as hanging. `inject`: Python that each rank executes
        first. `program`: what each rank runs in place of our training. `warm_up`: steps whose time is not counted.
        """
        self._starter, self._scratch, self._patience, self._inject = starter, scratch, patience, inject
        self._program, self._warm_up = program, warm_up
        self._file = (kept or scratch) / "measured.jsonl"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._count = 0

    def known(self, job: JobSpec) -> Measured | None:
        """What is known of a job; what failed for other reasons than memory is tried again."""
        key = _key(job)
        found = None
        for record in read_lines(self._file):
            if record.get("key") == key and record["outcome"] != "failed":
                values = {name: record[name] for name in Measured.__dataclass_fields__ if name in record}
                found = _measured(values)
        return found

    def measure(self, job: JobSpec) -> Measured:
        """Measure a job."""
        known = self.known(job)
        if known is not None:
            return known
        [measured] = self._measure_in_turn([job], _visible()[: job.world_size], math.inf)
        return measured

    def measure_all(self, jobs: Iterable[JobSpec], seconds: float = math.inf) -> dict[str, Measured]:
        """Measure what is not known, until `seconds` are over: jobs of few GPUs first, as many side by side as have
        GPUs of their own, and on the same GPUs one after the other. A job of more ranks than there are GPUs takes them
        for several nodes (`RankStarter.start`): its numbers are right, its seconds say nothing. Returns what was
        measured now, by the jobs' names.
        """
        until = time.monotonic() + seconds
        unknown = [job for job in jobs if self.known(job) is None]
        gpus = _visible()
        found: dict[str, Measured] = {}
        for size in sorted({job.world_size for job in unknown}):
            lanes: list[list[JobSpec]] = [[] for _ in range(max(len(gpus) // size, 1))]
            for index, job in enumerate(job for job in unknown if job.world_size == size):
                lanes[index % len(lanes)].append(job)
            with ThreadPoolExecutor(max_workers=len(lanes)) as pool:
                each_gpus = (gpus[index * size :][:size] for index in range(len(lanes)))
                measured = pool.map(lambda lane, own: self._measure_in_turn(lane, own, until), lanes, each_gpus)
            for lane, results in zip(lanes, measured, strict=True):
                found |= {job.name: result for job, result in zip(lane, results, strict=False)}
        return found

    def _measure_in_turn(self, jobs: Sequence[JobSpec], gpus: Sequence[str], until: float) -> list[Measured]:
        """Measure jobs of one size on these GPUs. A job that fails ends its processes; the others go on in new ones."""
        measured: list[Measured] = []
        while len(measured) < len(jobs) and time.monotonic() < until:
            measured += self._launch(jobs[len(measured) :], gpus, until)
        return measured

    def _launch(self, jobs: Sequence[JobSpec], gpus: Sequence[str], until: float) -> list[Measured]:
        """Of the first of these jobs, as many as come to an end in one set of processes."""
        runs = [self._new_run(job) for job in jobs]
        listed = runs[0].path / "runs"
        listed.write_text("".join(f"{run.path}\n" for run in runs))
        started = self._starter.start(
            listed,
            jobs[0].world_size,
            program=self._program,
            inject=self._inject,
            env={**RANK_ENVIRONMENT, **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})},
            seconds_to_end=0.0,
            per_node=math.gcd(jobs[0].world_size, len(gpus)),
            launch_id="measured",
        )
        found: list[Measured] = []
        progress = time.monotonic()
        while len(found) < len(jobs):
            ended = started.poll() is not None
            measured = _result(jobs[len(found)], runs[len(found)], self._warm_up)
            if measured is None and not ended:
                if time.monotonic() < min(progress + self._patience, until):
                    time.sleep(0.02)
                    continue
                started.signal(signal.SIGKILL)
                started.wait()
                if time.monotonic() < until:
                    measured = Measured("failed", message=f"no end after {self._patience} s")
            if measured is None and time.monotonic() < until and (not found or not _left_something(runs[len(found)])):
                measured = Measured("failed", message=_last_words(runs[len(found)]))
            if measured is None:
                break
            progress = time.monotonic()
            self._keep(jobs[len(found)], measured)
            found.append(measured)
            if measured.outcome != "measured":
                break
        started.wait()
        return found

    def _new_run(self, job: JobSpec) -> RunDir:
        with self._lock:
            self._count += 1
            run = RunDir(self._scratch / f"{self._count}-{job.name}" / "run")
        run.path.mkdir(parents=True)
        write_atomically(run.next_resolved(), dump_resolved(job))
        return run

    def _keep(self, job: JobSpec, measured: Measured) -> None:
        with self._lock:
            append_line(self._file, {"name": job.name, "key": _key(job), **asdict(measured)})


def _result(job: JobSpec, run: RunDir, warm_up: int) -> Measured | None:
    """What the ranks wrote of a job; None while one has not."""
    files = [run.path / f"measured-{rank}.json" for rank in range(job.world_size)]
    ranks = [json.loads(file.read_text()) for file in files if file.exists()]
    burst = [rank["out_of_memory"] for rank in ranks if "out_of_memory" in rank]
    if burst:
        return Measured("out_of_memory", message=burst[0][:500])
    if len(ranks) < job.world_size:
        return None
    seconds, intervals = (
        [max(each) for each in zip(*(rank[key] for rank in ranks), strict=True)][warm_up:]
        for key in ("seconds", "intervals")
    )
    return Measured(
        "measured",
        layers=ranks[0]["layers"],
        device=ranks[0]["device"],
        step_seconds=statistics.median(seconds),
        interval_seconds=statistics.median(intervals),
        spread=(min(seconds), max(seconds)),
        peak_bytes=_by_stage(job, [rank["peak_bytes"] for rank in ranks]),
        reserved_bytes=_by_stage(job, [rank["reserved_bytes"] for rank in ranks]),
        used_bytes=_by_stage(job, [rank["used_bytes"] for rank in ranks]),
        losses=tuple(ranks[0]["losses"]),
        grad_norms=tuple(ranks[0]["grad_norms"]),
    )


def _measured(values: dict[str, Any]) -> Measured:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Measured(**fields)


def _visible() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES would name them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(gpu_count())]


@functools.cache
def gpu_count() -> int:
    """GPUs of this machine. Asked in a way that leaves them alone: what a process takes on one only by looking at it
    would be missing there.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return torch.cuda.device_count()


@functools.cache
def gpu_name() -> str:
    """The first GPU's, as the driver says it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def _key(job: JobSpec) -> dict[str, Any]:
    return {"config": job.config_hash, "machine": machine_for(job), "versions": versions()}


def _by_stage(job: JobSpec, values: Sequence[int]) -> tuple[int, ...]:
    fullest = [0] * job.parallelism.pipeline_model_parallel_size
    for rank, value in enumerate(values):
        stage = rank_of(job, rank).pp
        fullest[stage] = max(fullest[stage], value)
    return tuple(fullest)


def _left_something(run: RunDir) -> bool:
    """Whether the processes ended before they began this job, for what an earlier one left behind in them."""
    return not run.logs.exists()


def _last_words(run: RunDir) -> str:
    """The end of the log of the rank that failed: the first that raised, or else the first that ended. The others of
    its launch are ended after it, and their logs may have ended before.
    """
    logs = sorted(run.logs.glob("rank-*.log"), key=lambda path: path.stat().st_mtime)
    texts = [path.read_text(errors="replace") for path in logs]
    raised = [text for text in texts if "Traceback (most recent call last)" in text]
    return "\n".join(text[-1500:] for text in (raised or texts)[:1])


def has_layers(layers: str) -> bool:
    """Whether this layer backend is installed."""
    return layers == "torch" or importlib.util.find_spec("transformer_engine") is not None


def asked_of(request: pytest.FixtureRequest, *parameters: str) -> set[tuple[str, ...]]:
    """The values of these parameters that the session's tests of the fixture's module have, of those that have all."""
    items = (item for item in request.session.items if item.getparent(pytest.Module) is request.node)
    given = (item.callspec.params for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec"))
    return {tuple(str(params[each]) for each in parameters) for params in given if {*parameters} <= {*params}}


def needs_gpus(count: int, layers: str) -> None:
    """Skip the test where it cannot run: one whose ranks need a GPU each."""
    if gpu_count() < count:
        pytest.skip(f"needs {count} GPUs, this machine has {gpu_count()}")
    needs_layers(layers)


def fits_here(job: JobSpec, layers: Layers) -> bool:
    """Whether this machine's GPUs are large enough for a job, by the plan."""
    known = shipped(gpu_name())
    needed = estimate_memory(job, padded_vocab(job), layers)
    return known is None or capacity(needed, known) != "does not fit"


def needs_memory(job: JobSpec, layers: Layers) -> None:
    """Skip the test where its job is too large for these GPUs."""
    if not fits_here(job, layers):
        pytest.skip(f"{job.name} is too large for {gpu_name()}")


def needs_layers(layers: str) -> None:
    """Skip the test where its layers are not installed."""
    if not has_layers(layers):
        pytest.skip("Transformer Engine is not installed")
