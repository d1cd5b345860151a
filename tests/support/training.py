"""Running the training program on small jobs, and reading what it left in the run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.run_directory.rundir import RunDir, read_lines, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from support.event_log import lines_of

TINY: dict[str, dict[str, Any]] = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 250},
    "batch": {"micro_batch_size": 4, "global_batch_size": 8},
    "data": {"random_tokens": True},
    "optimizer": {"lr": 1e-3},
    "schedule": {"train_iters": 8, "lr_warmup_iters": 2},
    "precision": {"dtype": "fp32"},
    "tracking": {"mlflow": False},
}
"""A GPT of 34,000 parameters on random tokens, of two micro-batches: what a job is about it makes larger."""

FOUR_LAYERS: dict[str, dict[str, Any]] = {
    **TINY,
    "model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "vocab_size": 250},
    "batch": {"micro_batch_size": 2, "global_batch_size": 8},
    "schedule": {"train_iters": 20, "lr_warmup_iters": 2},
}
"""A GPT of 220,000 parameters, for what is planned and read and hardly trained."""


def layout(tp: int = 1, pp: int = 1, dp: int = 1, vp: int | None = None, **more: Any) -> dict[str, Any]:
    """A `parallelism` section."""
    section = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "data_parallel_size": dp,
        "virtual_pipeline_model_parallel_size": vp,
    }
    return {**section, **more}


def tiny_job(name: str, **sections: Mapping[str, Any]) -> JobSpec:
    """TINY with some fields of some sections replaced."""
    return _job(TINY, name, sections)


def four_layer_job(name: str, **sections: Mapping[str, Any]) -> JobSpec:
    """FOUR_LAYERS likewise."""
    return _job(FOUR_LAYERS, name, sections)


def _job(base: Mapping[str, Mapping[str, Any]], name: str, sections: Mapping[str, Mapping[str, Any]]) -> JobSpec:
    merged: dict[str, Any] = {"name": name}
    for section in {*base, *sections}:
        if sections.get(section, {}) is None:  # of a dumped job, one that it does not have
            continue
        merged[section] = {**base.get(section, {}), **sections.get(section, {})}
    return JobSpec.model_validate(merged)


def make_run(runs_dir: Path, job: JobSpec) -> RunDir:
    """A run directory that the training program can be started on; a second call adds a changed spec to it."""
    run = RunDir(runs_dir / job.name / "run")
    run.path.mkdir(parents=True, exist_ok=True)
    write_atomically(run.next_resolved(), dump_resolved(job))
    return run


def start(run: RunDir, job: JobSpec, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """The training program under torchrun, in a session of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.world_size)]
    run.logs.mkdir(exist_ok=True)
    with open(run.launcher_log, "ab") as log:
        return subprocess.Popen(
            [*command, "-m", "orchestrator.runtime", str(run.path), *arguments],
            env={**os.environ, "ORCHESTRATOR_LAUNCH_ID": "test", **(env or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def train(
    run: RunDir, job: JobSpec, *arguments: str, timeout: float = 240, env: Mapping[str, str] | None = None
) -> int:
    """Run the training program to its end; its exit code."""
    process = start(run, job, *arguments, env=env)
    try:
        return process.wait(timeout)
    except BaseException:
        kill_session(process)
        raise


def must_train(run: RunDir, job: JobSpec, *arguments: str, timeout: float = 240) -> RunDir:
    """`train`, and the logs in the failure when it does not succeed."""
    code = train(run, job, *arguments, timeout=timeout)
    assert code == 0, logs(run)
    return run


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process, its session and all that it started: torchrun's ranks have sessions of their own."""
    for pid in {*session_members(process.pid), *started_by(process.pid)}:
        _kill(pid)
    process.wait()


def session_members(session: int) -> list[int]:
    """Processes of a session, from /proc."""
    return [pid for pid, (_, its_session) in _alive().items() if its_session == session]


def started_by(pid: int) -> list[int]:
    """A process's children, theirs and so on."""
    alive, found = _alive(), [pid]
    for parent in found:
        found += [child for child, (its_parent, _) in alive.items() if its_parent == parent]
    return found[1:]


def _alive() -> dict[int, tuple[int, int]]:
    """Parent and session of every process."""
    alive = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                alive[int(entry.name)] = int(fields[1]), int(fields[3])
    return alive


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


def values(run: RunDir, key: str) -> dict[int, float]:
    """A metric by iteration; the last record of an iteration counts."""
    return {
        record["iteration"]: float(record["values"][key])
        for record in read_lines(run.metrics_file)
        if key in record["values"]
    }


def losses(run: RunDir) -> dict[int, float]:
    """Training loss by iteration."""
    return values(run, "train/loss")


def events(run: RunDir, kind: str) -> list[dict[str, Any]]:
    """Events of one kind."""
    return [event for event in lines_of(run) if event["event"] == kind]


def exit_record(run: RunDir, launch_id: str = "test", rank: int = 0) -> dict[str, Any]:
    """What a rank of a launch said about its end."""
    record: dict[str, Any] = json.loads(run.exit_record(launch_id, rank).read_bytes())
    return record


def is_completed(run: RunDir, world_size: int, launch_id: str = "test") -> bool:
    """Whether every rank of a launch said that the training came to its end."""
    records = [run.exit_record(launch_id, rank) for rank in range(world_size)]
    return all(path.exists() and json.loads(path.read_bytes())["cause"] == "completed" for path in records)


def largest_difference(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Largest relative difference of two loss curves over the same iterations."""
    assert a.keys() == b.keys()
    assert a
    return max(abs(a[i] - b[i]) / abs(a[i]) for i in a)


def logs(run: RunDir) -> str:
    """The end of every log, for a failing test to show."""
    parts = []
    for path in sorted(run.logs.glob("*.log")):
        parts.append(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-30:]))
    return "\n".join(parts)
