"""A folder of 5,000 runs: listed in a second, one of them shown at once, in little memory, also from a slow disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from baseline.packing import kept, unpack
from browser.many import many_runs
from support.pace import slowness

from orchestrator.launch.runs import all_runs

pytestmark = [pytest.mark.alone, pytest.mark.slow("5,000 runs are made and read")]

RUNS = 5000
TEMPLATES = ("dp", "interrupted", "gpt")
LIST_SECONDS, STATUS_SECONDS, SLOW_SECONDS = 1.0, 0.4, 3.0
"""At the promised pace: processor seconds of a whole program; of a slow disk also the seconds that it lets wait."""
QUESTIONS_OF_A_RUN = 4
"""To a slow disk, of a run that has not changed."""
MEGABYTES = 300
ATTEMPTS = 5
TESTS = Path(__file__).parents[2]
MEASURED = """
import resource, sys
from orchestrator.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
[most] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(used.ru_utime + used.ru_stime, int(most) / 1024, file=sys.stderr)
sys.exit(code)
"""
"""Its memory by VmHWM: `ru_maxrss` begins with what the process had that started it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("many")
    for name in TEMPLATES:
        unpack(kept(name), place / "few")
    runs = {run.name: run for run in all_runs(place / "few" / "runs")}
    made = many_runs([runs[name] for name in TEMPLATES], place / "runs", RUNS, long=0, steps=10)
    for run in made:
        os.utime(run.path, (1.7e9, 1.7e9))
        os.utime(run.events_file, (1.7e9, 1.7e9))
        for path in (run.lease, run.checkpoints):
            if path.exists():
                os.utime(path, (1.7e9, 1.7e9))
    return place / "runs"


def spent(*words: str) -> tuple[str, float, float]:
    """What a command prints, its processor seconds at the promised pace, and its megabytes."""
    before = slowness()
    finished = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, check=True)
    seconds, megabytes = map(float, finished.stderr.split()[-2:])
    return finished.stdout, seconds / max(before, slowness()), megabytes


def test_lists_and_one_of_them(folder: Path) -> None:
    place = ("--runs-dir", str(folder))
    cold, first_seconds, first_megabytes = spent("list", *place)
    assert len(cold.splitlines()) == RUNS + 1
    lists = [spent("list", *place) for _ in range(ATTEMPTS)]
    filtered = [spent("list", *place, "--where", "lr > 0.4 and loss < 5", "--sort", "loss") for _ in range(ATTEMPTS)]
    shown = [spent("status", "dp-03/00000003", *place) for _ in range(ATTEMPTS)]
    assert all(out == cold for out, _, _ in lists)
    best = {
        "list": min(seconds for _, seconds, _ in lists),
        "list --where": min(seconds for _, seconds, _ in filtered),
        "status": min(seconds for _, seconds, _ in shown),
    }
    print(f"without the index {first_seconds:.2f} s, {first_megabytes:.0f} MB; with it {best}")
    assert best["list"] < LIST_SECONDS, best
    assert best["status"] < STATUS_SECONDS, best
    assert max(first_megabytes, *(megabytes for *_, megabytes in lists)) < MEGABYTES


def test_from_a_slow_disk(folder: Path) -> None:
    place = ("list", "--runs-dir", str(folder))
    listed, _, _ = spent(*place)
    times: list[float] = []
    while len(times) < ATTEMPTS and min(times, default=SLOW_SECONDS) >= SLOW_SECONDS:
        before = slowness()
        command = [sys.executable, "-m", "support.slow_disk", str(folder), *place]
        finished = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
        seconds, processor, questions = map(float, finished.stderr.split()[-3:])
        assert finished.stdout == listed
        times.append(max(0.0, seconds - processor) + processor / max(before, slowness()))
    print(f"from a slow disk {min(times):.2f} s, {questions:.0f} questions")
    assert questions < QUESTIONS_OF_A_RUN * RUNS + 2 * len([*folder.iterdir()]) + 50
    assert min(times) < SLOW_SECONDS, times
