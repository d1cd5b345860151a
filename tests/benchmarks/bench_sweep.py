"""How long `orchestrator sweep run --dry-run` takes for a thousand cells: expanding, checking and planning each,
rendering its batch script, and the script of the array. Writes a page to docs/benchmarks.

    python tests/benchmarks/bench_sweep.py [REPEATS]
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

CELLS = 1000
MOST_SECONDS = 10.0
PAGES = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
BASE = Path(__file__).resolve().parents[2] / "jobs" / "benchmarks" / "gpt-1.7b.yaml"


def main() -> int:
    """Measure, write the page; 1 when it took too long."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        measured = [measure(folder) for _ in range(repeats + 1)][1:]  # the first one fills the disk's cache
    page = PAGES / f"{date.today()}-sweep.md"
    page.write_text(describe(measured))
    print(page.read_text())
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


def describe(measured: list[tuple[float, float, float]]) -> str:
    """The page."""
    seconds = [took for took, _, _ in measured]
    median, cpu = statistics.median(seconds), statistics.median(used for _, used, _ in measured)
    load = f"{min(load for _, _, load in measured):.1f} to {max(load for _, _, load in measured):.1f}"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"""# A thousand cells, {date.today()}

**{median:.2f} seconds** for `orchestrator sweep run --dry-run` over {CELLS} cells:
{median / CELLS * 1000:.1f} ms for each ({cpu:.2f} CPU seconds in all). Bar: under {MOST_SECONDS:g} seconds.

Each repeat: {", ".join(f"{took:.2f}" for took in seconds)} seconds.

## What was measured
- The whole command from its start to its end, in a fresh process: a grid of 1,500 combinations over
  `jobs/benchmarks/gpt-1.7b.yaml`, of which a condition keeps {CELLS}.
- For each cell: merging, typing and checking the spec, its configuration hash, the plan, the limits of a cluster
  profile, and the batch script that its task would run. For all: the script of the array, by submitit in a process of
  its own.
- Not counted, because a dry run does not do it: making {CELLS} run directories and calling `sbatch`.

## Where
{machine}. Load average before each run: {load}; above {os.cpu_count()}, others were using the cores as well.

Measure again with `make bench`.
"""


if __name__ == "__main__":
    sys.exit(main())
