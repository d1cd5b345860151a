"""Listing thousands of runs, one of them, and the dashboard's page: with the index, without, and another checkout's.

PYTHONPATH=tests .venv/bin/python tests/benchmarks/bench_many_runs.py --other CHECKOUT

All of them in one run, in an order that turns round by round. A slow disk takes 5 ms for each question; what takes
longer there than `--patience` seconds is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from statistics import median

from baseline.packing import kept, unpack
from support.many_runs import many_runs
from support.pace import slowness

from orchestrator.launch.runs import all_runs

HERE = Path(__file__).parents[2]
TEMPLATES = ("dp", "interrupted", "gpt")
REQUESTS = 5
PROGRAM = """
import resource, sys
from orchestrator.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
[most] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(used.ru_utime + used.ru_stime, int(most) / 1024, file=sys.stderr)
"""
Row = dict[str, float]


def command(checkout: Path, home: Path, *words: str) -> tuple[float, float]:
    """Processor seconds and megabytes of a command."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=environment, capture_output=True, text=True, check=True
    )
    seconds, megabytes = done.stderr.split()[-2:]
    return float(seconds), float(megabytes)


def from_slow_disk(checkout: Path, home: Path, runs_dir: Path, patience: float) -> float:
    """Seconds of a list; infinite where they are more than `patience`."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(home)}
    words = [sys.executable, "-m", "support.slow_disk", str(runs_dir), "list", "--runs-dir", str(runs_dir)]
    try:
        done = subprocess.run(
            words, env=environment, cwd=HERE / "tests", capture_output=True, text=True, check=True, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return float("inf")
    return float(done.stderr.split()[-3])


def dashboard(checkout: Path, home: Path, runs_dir: Path) -> Row:
    """Of a server that has just started: seconds to the first byte, to all runs, then of a request; its megabytes."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(home)}
    words = [sys.executable, "-m", "orchestrator", "dashboard", "--runs-dir", str(runs_dir), "--port=0", "--json"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, cwd=home) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        begun = time.perf_counter()
        first, page = fetched(address)
        while "Reading the folder" in page:
            time.sleep(0.2)
            _, page = fetched(address)
        known = time.perf_counter() - begun
        warm = median(fetched(address)[0] for _ in range(REQUESTS))
        status = Path(f"/proc/{server.pid}/status").read_text()
        [most] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        server.terminate()
    found = {"first byte, just started": first, "all runs known": known, "first byte, later": warm}
    return {**found, "server MB": int(most) / 1024}


def fetched(address: str) -> tuple[float, str]:
    """Seconds to the first byte of a page, and the page."""
    begun = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        head = answer.read(1)
        seconds = time.perf_counter() - begun
        return seconds, (head + answer.read()).decode()


def measured(checkout: Path, runs_dir: Path, home: Path, patience: float, *, index: bool) -> Row:
    """All figures of a checkout; the index is there, or is deleted before each of them."""

    def begin() -> None:
        for folder in () if index else (runs_dir / ".cache", home):
            shutil.rmtree(folder, ignore_errors=True)
        home.mkdir(exist_ok=True)

    place = ("--runs-dir", str(runs_dir))
    begin()
    if index:
        command(checkout, home, "list", *place)
    row: Row = {}
    row["list, processor s"], row["list MB"] = command(checkout, home, "list", *place)
    begin()
    row["status NAME, processor s"], _ = command(checkout, home, "status", "dp-03/00000003", *place)
    begin()
    row |= dashboard(checkout, home, runs_dir)
    begin()
    row["list from a slow disk"] = from_slow_disk(checkout, home, runs_dir, patience)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="another checkout")
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--patience", type=float, default=120.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in TEMPLATES:
            unpack(kept(each), folder / "few")
        runs = {run.name: run for run in all_runs(folder / "few" / "runs")}
        many_runs([runs[each] for each in TEMPLATES], folder / "runs", asked.runs, long=0, steps=10)
        variants = {"index": (HERE, True), "no index": (HERE, False), "other": (asked.other.absolute(), False)}
        found: dict[str, list[Row]] = defaultdict(list)
        for number in range(asked.rounds):
            for variant in [*variants][number % 3 :] + [*variants][: number % 3]:
                checkout, index = variants[variant]
                row = measured(checkout, folder / "runs", folder / "home", asked.patience, index=index)
                found[variant].append(row | {"slowness": slowness()})
                print(variant, json.dumps(found[variant][-1]), file=sys.stderr)
    print(f"| {asked.runs} runs | {' | '.join(variants)} |\n|---{'|---' * len(variants)}|")
    for key in found["index"][0]:
        best = (min(row[key] for row in found[variant]) for variant in variants)
        print(f"| {key} | {' | '.join(f'{value:.3g}' for value in best)} |")


if __name__ == "__main__":
    main()
