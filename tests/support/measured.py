"""Measure real steps of a job: seconds, and the memory that each pipeline stage needed at most.

`measure` is for tests, and CONFIGURATIONS are what predictions are held against: `measure_configuration` runs each
once per process, however many tests ask. As a program this module is one rank of what it measures: the training
program without saving, evaluation and tracking, whose every rank writes down its steps.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planning.topology import rank_of
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_job, load_text

_WARM_UP = 3
"""Steps whose time is not counted: the first compiles, and clocks settle."""


@dataclass(frozen=True)
class Measured:
    """What a run needed."""

    job: JobSpec
    padded_vocab: int
    layers: str
    device: str
    step_seconds: float
    """Median over the steps after the warm-up, of the slowest rank."""
    spread: tuple[float, float]
    """Fastest and slowest of these steps."""
    peak_bytes: tuple[int, ...]
    """For each pipeline stage, what its fullest rank had allocated at most during the steps; 0 without CUDA."""
    reserved_bytes: tuple[int, ...]
    """The same for what torch's allocator held."""
    used_bytes: tuple[int, ...]
    """The same for what was taken on the GPU at the end, by whomever: CUDA's context and NCCL's buffers too."""


def measure(
    source: str | Path, overrides: Sequence[str], gpus: int, *, steps: int = 8, timeout: float = 540
) -> Measured:
    """Train a job (YAML text, or a file) with `--set` overrides for some steps on `gpus` ranks of this machine."""
    changes = [*overrides, f"schedule.train_iters={steps}", f"launch.gpus_per_node={gpus}", "tracking.mlflow=false"]
    loaded = load_job([source], changes) if isinstance(source, Path) else load_text(source, overrides=changes)
    job = loaded.job
    with tempfile.TemporaryDirectory(prefix="measured-") as folder:
        run = RunDir(Path(folder) / job.name / "run")
        run.path.mkdir(parents=True)
        write_atomically(run.next_resolved(), dump_resolved(job))
        _train(run, job, timeout)
        ranks = [json.loads((run.path / f"measured-{rank}.json").read_text()) for rank in range(job.world_size)]
    seconds = [max(each) for each in zip(*(rank["seconds"] for rank in ranks), strict=True)][_WARM_UP:]
    return Measured(
        job=job,
        padded_vocab=vocabulary(job).padded_size,
        layers=ranks[0]["layers"],
        device=ranks[0]["device"],
        step_seconds=statistics.median(seconds),
        spread=(min(seconds), max(seconds)),
        peak_bytes=_by_stage(job, [rank["peak_bytes"] for rank in ranks]),
        reserved_bytes=_by_stage(job, [rank["reserved_bytes"] for rank in ranks]),
        used_bytes=_by_stage(job, [rank["used_bytes"] for rank in ranks]),
    )


@dataclass(frozen=True)
class Configuration:
    """A job of the published table's models, small enough in steps to be measured in seconds."""

    preset: str
    gpus: int
    micro_batch: int
    micro_batches: int
    layers: str = "torch"
    tp: int = 1
    pp: int = 1
    more: tuple[str, ...] = ()
    """Further overrides; the first tells it apart."""

    @property
    def name(self) -> str:
        """For a test's id and a table's row."""
        dp = self.gpus // (self.tp * self.pp)
        layout = f"TP{self.tp}-PP{self.pp}-DP{dp}-{self.micro_batch}x{self.micro_batches}"
        return "-".join([self.preset, layout, self.layers, *(word.rpartition(".")[2] for word in self.more[:1])])

    @property
    def job(self) -> str:
        """The job as YAML."""
        return f"""
name: measured
model: {{preset: {self.preset}}}
parallelism:
  tensor_model_parallel_size: {self.tp}
  pipeline_model_parallel_size: {self.pp}
  sequence_parallel: {str(self.tp > 1).lower()}
batch: {{micro_batch_size: {self.micro_batch}, num_micro_batches: {self.micro_batches}}}
data: {{random_tokens: true}}
optimizer: {{lr: 1.0e-4}}
schedule: {{train_iters: 8}}
runtime: {{layers: {self.layers}}}
launch: {{gpus_per_node: {self.gpus}}}
"""


_TE = "transformer_engine"
_FULL = ("runtime.recompute_method=uniform", "runtime.recompute_num_layers=1", "runtime.recompute_granularity=full")
_HALF = ("runtime.recompute_method=block", "runtime.recompute_num_layers=12", "runtime.recompute_granularity=full")
_SELECTIVE = ("runtime.recompute_granularity=selective",)
CONFIGURATIONS = (
    Configuration("gpt-1.7b", 1, 1, 4),
    Configuration("gpt-1.7b", 1, 4, 4),
    Configuration("gpt-1.7b", 1, 4, 4, _TE),
    Configuration("gpt-1.7b", 1, 4, 2, _TE, more=_SELECTIVE),
    Configuration("gpt-1.7b", 1, 4, 2, more=_FULL),
    Configuration("gpt-1.7b", 1, 8, 1, more=_HALF),
    Configuration("gpt-1.7b", 2, 4, 2),
    Configuration("gpt-1.7b", 2, 4, 2, tp=2, more=("parallelism.sequence_parallel=false",)),
    Configuration("gpt-7.1b", 2, 2, 2, tp=2),
    Configuration("gpt-7.1b", 2, 1, 8, _TE, pp=2),
    Configuration("gpt-7.1b", 4, 4, 1, tp=2),
    Configuration("gpt-7.1b", 4, 4, 1, _TE, tp=2),
    Configuration("gpt-7.1b", 4, 1, 16, tp=2, pp=2),
    Configuration("gpt-7.1b", 4, 1, 8, pp=2, more=("parallelism.virtual_pipeline_model_parallel_size=3",)),
    Configuration("gpt-7.1b", 4, 4, 2, _TE, tp=4),
    Configuration("gpt-7.1b", 4, 2, 2, more=_FULL),
)


@functools.cache
def measure_configuration(configuration: Configuration) -> Measured:
    """Measure one of the configurations; skips the test where this machine cannot run it."""
    needs_gpus(configuration.gpus, configuration.layers)
    return measure(configuration.job, configuration.more, configuration.gpus)


def needs_gpus(count: int, layers: str) -> None:
    """Skip the test where it cannot run."""
    import torch

    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs, this machine has {torch.cuda.device_count()}")
    if layers == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")


def _by_stage(job: JobSpec, values: Sequence[int]) -> tuple[int, ...]:
    fullest = [0] * job.parallelism.pipeline_model_parallel_size
    for rank, value in enumerate(values):
        stage = rank_of(job, rank).pp
        fullest[stage] = max(fullest[stage], value)
    return tuple(fullest)


def _train(run: RunDir, job: JobSpec, timeout: float) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.world_size)]
    packages = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "0", "PYTHONPATH": packages}
    finished = subprocess.run(
        [*command, __file__, str(run.path)],
        env={**os.environ, **environment, **job.launch.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout.decode(errors="replace")[-6000:]


def be_rank(path: Path) -> None:
    """Train as one rank and write what it needed to `measured-RANK.json`."""
    import contextlib

    from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
    from orchestrator.runtime.callbacks.base import Callback
    from orchestrator.runtime.device import select_device
    from orchestrator.runtime.loop import train
    from orchestrator.runtime.process_groups import stop_process_groups
    from orchestrator.runtime.startup import open_session
    from orchestrator.spec.loading import load_resolved

    class Steps(Callback):
        """Notes each step. The loss of the last one is agreed on as well, so that its work is done."""

        def __init__(self) -> None:
            self.seconds: list[float] = []

        def on_loss(self, session: Any, record: Any, loss: float) -> None:
            self.seconds.append(record.seconds)

    run, steps = RunDir(path), Steps()
    job = load_resolved(run.resolved())
    device = select_device(job.runtime.device, threads=job.runtime.threads_per_rank)
    with contextlib.ExitStack() as closing:
        session = open_session(run, job, device, "measured", False, closing)
        train(session, [steps])
        found = {"seconds": steps.seconds, "layers": session.layers, "device": device.name, **_memory(device.is_cuda)}
        write_atomically(run.path / f"measured-{session.ranks.rank}.json", json.dumps(found))
    stop_process_groups()


def _memory(is_cuda: bool) -> dict[str, int]:
    if not is_cuda:
        return {"peak_bytes": 0, "reserved_bytes": 0, "used_bytes": 0}
    import torch

    free, total = torch.cuda.mem_get_info()
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": total - free,
    }


if __name__ == "__main__":
    be_rank(Path(sys.argv[1]))
