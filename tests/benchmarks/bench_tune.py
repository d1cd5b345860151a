"""How long `orchestrator tune` searches, from one machine to thousands of GPUs. Writes a page to docs/benchmarks.

python tests/benchmarks/bench_tune.py [REPEATS]
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

MOST_SECONDS = 20.0
"""The bar, for 70B on 1,024 GPUs."""
ROWS = (
    ("gpt-1.7b", 8, 64, "H100"),
    ("gpt-7.1b", 4, 192, "H200"),
    ("gpt-7.1b", 96, 192, "H100"),
    ("gpt-70b", 1024, 1024, "H100"),
    ("gpt-70b", 768, 384, "H100"),
    ("gpt-462b", 6144, 3072, "H100"),
)
"""Model, GPUs, global batch, GPU."""
PAGES = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
JOB = """\
name: {model}
model: {{preset: {model}}}
batch: {{global_batch_size: {batch}}}
data: {{random_tokens: true}}
optimizer: {{lr: 1.0e-4}}
schedule: {{train_iters: 100}}
runtime: {{layers: transformer_engine}}
"""


@dataclass(frozen=True)
class Row:
    """What one search took, and what it found."""

    model: str
    gpus: int
    batch: int
    gpu: str
    seconds: list[float]
    cpu: float
    fitting: int
    lost: int
    words: str

    @property
    def line(self) -> str:
        """A row of the table."""
        took = f"{statistics.median(self.seconds):.2f} | {self.cpu:.2f} | {self.fitting + self.lost:,}"
        return f"| {self.model} | {self.gpus:,} {self.gpu} | {self.batch:,} | {took} | {self.words} |"


def main() -> int:
    """Measure, write the page; 1 when the 70B search took too long."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        rows = [measure(Path(name), *row, repeats) for row in ROWS]
    page = PAGES / f"{date.today()}-tuner.md"
    page.write_text(describe(rows, load))
    print(page.read_text())
    [bar] = [row for row in rows if (row.model, row.gpus) == ("gpt-70b", 1024)]
    return 0 if statistics.median(bar.seconds) < MOST_SECONDS else 1


def measure(folder: Path, model: str, gpus: int, batch: int, gpu: str, repeats: int) -> Row:
    """Run the command some times in processes of their own."""
    (folder / "job.yaml").write_text(JOB.format(model=model, batch=batch))
    command = [sys.executable, "-m", "orchestrator", "tune", "job.yaml", "--gpus", str(gpus), "--gpu", gpu, "--json"]
    seconds, before = [], resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(repeats):
        started = time.perf_counter()
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        seconds.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / repeats
    found = json.loads(done.stdout)
    lost = sum(each["count"] for each in found["lost"].values())
    return Row(model, gpus, batch, gpu, seconds, cpu, found["fitting"], lost, _words(found["best"]))


def _words(best: dict[str, Any]) -> str:
    layout = best["layout"]
    degrees, runtime = layout["parallelism"], layout["runtime"]
    words = f"TP {degrees['tensor_model_parallel_size']} PP {degrees['pipeline_model_parallel_size']}"
    if chunks := degrees["virtual_pipeline_model_parallel_size"]:
        words += f" VP {chunks}"
    words += f" micro {layout['batch']['micro_batch_size']}"
    if runtime["recompute_granularity"] == "full":
        words += f", {runtime['recompute_num_layers']} layers recomputed ({runtime['recompute_method']})"
    return f"{words}: {best['mfu']:.1%} MFU"


def describe(rows: list[Row], load: float) -> str:
    """The page."""
    [bar] = [row for row in rows if (row.model, row.gpus) == ("gpt-70b", 1024)]
    lines = "\n".join(row.line for row in rows)
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"""# The tuner's search, {date.today()}

**{statistics.median(bar.seconds):.2f} seconds** for `orchestrator tune` with 70B parameters on 1,024 GPUs, the whole
command. Bar: under {MOST_SECONDS:g} seconds.

| model | GPUs | global batch | seconds | CPU seconds | layouts | found (predicted) |
|---|---|---|---|---|---|---|
{lines}

## What was measured
- The whole command from its start to its end, in a fresh process, on one core; the median of {len(bar.seconds)}.
- "layouts" counts what was considered: those that fit, and what was left out with a reason. Degrees that are not legal,
  or whose leanest layout does not fit, count once, whatever else could have been combined with them.
- What was found is a prediction, for Transformer Engine's layers. How good predictions are is on the pages about memory
  and time.

## Where
{machine}. Load average before: {load:.1f}; above {os.cpu_count()}, others were using the cores as well.

Measure again with `make bench`.
"""


if __name__ == "__main__":
    sys.exit(main())
