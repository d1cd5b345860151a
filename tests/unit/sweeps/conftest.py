"""A small job to sweep over, sweeps as text, and the fake training program."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import QUICK_TORCHRUN
from support.gate import Gate
from support.light_forks import LightForks
from support.programs import run_instead

from orchestrator.cli.main import main
from orchestrator.sweeps.loading import LoadedSweep, load_sweep
from tests.unit.sweeps.search_lab import STEPS, Lab

HERE = Path(__file__).parent
JOB = """\
name: tiny
model: {num_layers: 4, hidden_size: 16, num_attention_heads: 4, seq_length: 8, vocab_size: 256}
batch: {micro_batch_size: 1, global_batch_size: 16}
data: {random_tokens: true}
optimizer: {lr: 1e-3}
schedule: {train_iters: 20}
precision: {dtype: fp32}
checkpoint: {save_interval: 5}
tracking: {mlflow: false}
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with job.yaml, where the test is."""
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    # Each plan notes down the state of the code: git is asked for a while. Here it finds none.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(HERE.parents[2]))
    return tmp_path


@pytest.fixture
def lab(folder: Path) -> Lab:
    """A simulated machine for a job of as many steps as a search has."""
    (folder / "job.yaml").write_text(JOB.replace("train_iters: 20", f"train_iters: {STEPS}"))
    return Lab()


@pytest.fixture
def write(folder: Path) -> Callable[[str], Path]:
    """write(text): a sweep over job.yaml."""

    def write(text: str) -> Path:
        path = Path("sweep.yaml")
        path.write_text("base: job.yaml\n" + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def load(write: Callable[[str], Path]) -> Callable[[str], LoadedSweep]:
    """load(text): that sweep, loaded."""
    return lambda text: load_sweep([write(text)])


@pytest.fixture
def orchestrator(
    folder: Path, light_forks: LightForks, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """orchestrator(*arguments) -> (exit code, standard output, standard error); the training is the fake one."""
    for name, value in light_forks.variables(HERE, HERE.parent / "launch", QUICK_TORCHRUN).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ORCHESTRATOR_RUNS_DIR", str(folder / "runs"))
    monkeypatch.setenv("COLUMNS", "160")
    run_instead(monkeypatch, "sweep_runtime", "sweeps", "sweeps on clusters")

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def gate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A closed gate: every cell is held after its first step."""
    gate = Gate(folder / "gate-is-open")
    for name, value in gate.after(1).items():
        monkeypatch.setenv(name, value)
    return gate


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Poll until it holds; fails the test when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(0.2)  # what is asked for is often a whole command


@pytest.fixture
def until() -> Callable[..., None]:
    """until(condition): wait for it."""
    return wait_until
