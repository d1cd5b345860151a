"""How long a person waits for the first step of the quickstart."""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import psutil
import pytest
from support.event_log import lines_of
from support.pace import slowness

from orchestrator.run_directory.rundir import RunDir

JOBS = Path(__file__).resolve().parent.parent / "jobs"
PROMISED = 8.0
ORCHESTRATOR = [sys.executable, "-m", "orchestrator"]
PARTS = ["launch", "imports", "process_groups", "network", "checkpoint", "data", "before_steps", "step"]

pytestmark = [
    pytest.mark.alone,
    pytest.mark.distributed,
    pytest.mark.slow("it is what a person waits for first"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the quickstart's data sets, of less text: reading an index takes as long."""
    made = tmp_path / ".quickstart"
    text = [str(Path(sysconfig.get_path("stdlib"), "asyncio")), "--glob", "*.py"]
    words = ["--tokenizer-type", "huggingface", "--tokenizer-path", str(made / "tokenizer.json"), "--append-eod"]
    for command in (
        ["train-tokenizer", *text, "--vocab-size", "4096", "--output", str(made / "tokenizer.json")],
        ["tokenize", *text, *words, "--output-prefix", str(made / "stdlib")],
    ):
        subprocess.run([*ORCHESTRATOR, "data", *command], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def first_step(folder: Path, number: int) -> tuple[float, dict[str, float]]:
    """Seconds from the command to the end of the first step, and what the run says of them."""
    runs = folder / f"runs-{number}"
    started = time.time()
    command = [*ORCHESTRATOR, "run", str(JOBS / "quickstart.yaml"), "--runs-dir", str(runs)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        said = None
        while said is None and process.poll() is None:
            time.sleep(0.05)
            events = [event for path in runs.glob("quickstart/*") for event in lines_of(RunDir(path))]
            said = next((event for event in events if event["event"] == "first_step"), None)
        for _ in range(2):  # at once: what comes after the first step is not asked for
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        out, _ = process.communicate(timeout=60)
    end_senders(runs)
    assert said is not None, out.decode()
    return said["time"] - started, said["seconds"]


def end_senders(runs: Path) -> None:
    """What goes on sending a run to MLflow when its command has ended slows the next start, and outlives the test."""
    named = {process: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    senders = [process for process, words in named.items() if any(word.startswith(str(runs)) for word in words)]
    for process in senders:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # it leaves other signals to the ranks
    _, alive = psutil.wait_procs(senders, timeout=30)
    assert not alive


def test_the_first_step_comes_in_the_time_that_is_promised(folder: Path) -> None:
    """The best of some: it tells least of what else the machine does. The first fills the caches."""
    found: list[tuple[float, dict[str, float]]] = []
    best, pace = math.inf, 1.0
    while best >= PROMISED * pace and len(found) < 8:
        found.append(first_step(folder, len(found)))
        best, parts = min(found, key=lambda one: one[0])
        pace = slowness()
    assert best < PROMISED * pace, found
    assert list(parts) == PARTS
    # What is missing is the command itself, until it has written that it launches.
    assert best - 1.5 * pace < sum(parts.values()) <= best
