"""How long `orchestrator sweep run --dry-run` takes for a thousand cells: expanding, checking and planning each,
rendering its batch script, and the script of the array. Keeps its rows in docs/benchmarks/data.

    python tests/benchmarks/bench_sweep.py [REPEATS]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from host_rows import Figure, save

CELLS = 1000
MOST_SECONDS = 10.0
BASE = Path(__file__).resolve().parents[2] / "jobs" / "benchmarks" / "gpt-1.7b.yaml"


def main() -> int:
    """Measure, keep the rows; 1 when it took too long."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        measured = [measure(folder) for _ in range(repeats + 1)][1:]  # the first one fills the disk's cache
    rows = figures(measured)
    save("sweep", rows, [load for _, _, load in measured], repeats=[[took for took, _, _ in measured]])
    print(*rows, sep="\n")
    return 0 if statistics.median(seconds for seconds, _, _ in measured) < MOST_SECONDS else 1


def prepare(folder: Path) -> None:
    rates = ", ".join(f"{3e-5 * 1.03**number:.4g}" for number in range(100))
    grid = f"grid: {{lr: [{rates}], runtime.seed: [1, 2, 3, 4, 5], tp: [1, 2, 4]}}"
    (folder / "sweep.yaml").write_text(
        f"base: {BASE}\nsweep:\n  {grid}\n  when: tp < 4\nlaunch: {{gpus_per_node: 8}}\n",
    )
    (folder / "clusters").mkdir()
    profile = (
        "name: alps\npartitions: {gpu: {nodes: 16, gpus_per_node: 8, time_limit: 1d}}\npartition: gpu\ntime: 12h\n"
    )
    (folder / "clusters" / "alps.yaml").write_text(profile)


def measure(folder: Path) -> tuple[float, float, float]:
    """(seconds, CPU seconds of all processes, load average before)."""
    load = os.getloadavg()[0]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-m", "orchestrator", "sweep", "run", "sweep.yaml", "--dry-run"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert f": {CELLS} cells" in done.stdout
    assert f"#SBATCH --array=0-{CELLS - 1}" in done.stdout
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, load


def figures(measured: list[tuple[float, float, float]]) -> list[Figure]:
    """The rows of a measurement."""
    case = f"`orchestrator sweep run --dry-run`, {CELLS:,} cells"
    seconds, cpu = (statistics.median(each[index] for each in measured) for index in (0, 1))
    return [(case, "time", "s", f"{seconds:.2f}"), (case, "CPU time", "s", f"{cpu:.2f}")]


if __name__ == "__main__":
    sys.exit(main())
