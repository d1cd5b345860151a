"""A small job and a fake training program, so that launching is tested without torch's heavy start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event, lines_of
from support.faults import QUICK_TORCHRUN, Ranks
from support.gate import Gate
from support.light_forks import ForkedProgram, LightForks
from support.programs import run_instead
from support.this_machine import gpus, libraries

from orchestrator.cli import run_start
from orchestrator.cli.main import main
from orchestrator.launch.processes.launch_processes import end_processes
from orchestrator.run_directory.rundir import RunDir, read_lines
from orchestrator.spec.job import JobSpec

__all__ = ["gpus", "libraries"]

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _outside_of_repositories(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run notes down the state of the code: git is asked for a fifteenth of a second. Here it finds none."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(REPOSITORY))


@pytest.fixture(scope="session")
def make_job() -> Callable[..., JobSpec]:
    """make_job(**changes): a job that fits anywhere; changes are whole sections, or `section__key=value`."""
    return _make_job


def _make_job(**changes: Any) -> JobSpec:
    sections: dict[str, Any] = {
        "name": "tiny",
        "model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 8, "vocab_size": 256},
        "parallelism": {"tensor_model_parallel_size": 2},
        "batch": {"micro_batch_size": 1, "global_batch_size": 2},
        "data": {"random_tokens": True},
        "optimizer": {"lr": 1e-3},
        "schedule": {"train_iters": 20},
        "precision": {"dtype": "fp32"},
        "checkpoint": {"save_interval": 5},
        "tracking": {"mlflow": False},
        "runtime": {"device": "cpu"},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            sections[section] = {**sections.get(section, {}), name: value}
        else:
            sections[section] = value
    return JobSpec.model_validate(sections)


@pytest.fixture
def job() -> JobSpec:
    return _make_job()


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def make_run(runs_dir: Path) -> Callable[[JobSpec], RunDir]:
    """make_run(job): a run directory of that job, as small as a launch needs."""

    def create(job: JobSpec) -> RunDir:
        run = RunDir(runs_dir / job.name / job.config_hash[:8])
        run.path.mkdir(parents=True)
        (run.path / "resolved.json").write_text(job.model_dump_json())
        append_event(run, "created", run_id=run.run_id, config_hash=job.config_hash)
        return run

    return create


@pytest.fixture
def fake_runtime(light_forks: LightForks, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module name of the fake training program, importable by the processes that a test starts, as is a torchrun
    that is there at once; both are forked.
    """
    for name, value in light_forks.variables(Path(__file__).parent, QUICK_TORCHRUN).items():
        monkeypatch.setenv(name, value)
    return "fake_runtime"


def fork_torchrun(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torchrun itself start the fake training program: a process with torch forks both."""
    for name, value in ranks.under_torchrun(Path(__file__).parent).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORKED_TOO")  # of the process that forks the rest


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate that is closed."""
    return Gate(tmp_path / "gate-is-open")


@pytest.fixture
def start_launcher(light_forks: LightForks, fake_runtime: str) -> Iterator[Callable[..., ForkedProgram]]:
    """start_launcher(run, *options): the launcher as a process of its own; what is left of it ends with the test."""
    started: list[tuple[RunDir, ForkedProgram]] = []

    def start(run: RunDir, *options: str) -> ForkedProgram:
        command = ["orchestrator.launch", run.path, "--module", fake_runtime, *options]
        with open(os.devnull, "wb") as nowhere:
            process = light_forks.start(*command, env=os.environ, output=nowhere)
        started.append((run, process))
        return process

    yield start
    for run, process in started:
        process.close()
        for event in lines_of(run):
            if event["event"] == "launched":
                end_processes(event["launch_id"])


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Poll until it holds; fails the test when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(0.02)


@pytest.fixture
def until() -> Callable[..., None]:
    """until(condition): wait for it."""
    return wait_until


@pytest.fixture
def step_of() -> Callable[[RunDir], int]:
    """step_of(run): the last measured iteration, 0 before the first."""

    def step(run: RunDir) -> int:
        records = list(read_lines(run.metrics_file))
        return records[-1]["iteration"] if records else 0

    return step


@pytest.fixture
def orchestrator(
    runs_dir: Path, fake_runtime: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """orchestrator(*arguments) -> (exit code, standard output, standard error)."""
    monkeypatch.setenv("ORCHESTRATOR_RUNS_DIR", str(runs_dir))
    monkeypatch.setenv("COLUMNS", "120")
    run_instead(monkeypatch, fake_runtime, "training")

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def start_nothing(monkeypatch: pytest.MonkeyPatch, launch_id: str) -> None:
    """Have a start in the background be one that has this id already."""
    monkeypatch.setattr(run_start, "start_in_background", lambda *run, **how: launch_id)


@pytest.fixture
def job_file(make_job: Callable[..., JobSpec], tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(make_job().model_dump_json(exclude_unset=True))
    return path
