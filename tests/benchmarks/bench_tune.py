"""How long `orchestrator tune` searches, from one machine to thousands of GPUs. Keeps its rows in docs/benchmarks/data.

python tests/benchmarks/bench_tune.py [REPEATS]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_rows import Figure, save

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
    def figures(self) -> list[Figure]:
        """Its rows."""
        case = f"{self.model} on {self.gpus:,} {self.gpu}, global batch {self.batch:,}"
        return [
            (case, "time", "s", f"{statistics.median(self.seconds):.2f}"),
            (case, "CPU time", "s", f"{self.cpu:.2f}"),
            (case, "layouts", "", str(self.fitting + self.lost)),
            (case, "found", "", self.words),
        ]


def main() -> int:
    """Measure, keep the rows; 1 when the 70B search took too long."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        rows = [measure(Path(name), *row, repeats) for row in ROWS]
    figures = [figure for row in rows for figure in row.figures]
    save("tune", figures, [load], repeats=[row.seconds for row in rows])
    print(*figures, sep="\n")
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


if __name__ == "__main__":
    sys.exit(main())
