"""Tokens per second out of a blended data set, beside what an H200 eats.

Three data sets of 20 million tokens each, written for the purpose, are blended as a job's `data.blend` says and read as
its rank reads them: megatron-core's GPTDataset, a loader with so many workers, micro-batches of 4 sequences of 4,096
tokens. First as fast as they come, then one every 268 ms, which is how the hungriest row measured so far takes them:
what the training waits for is what is left.

    python tests/benchmarks/bench_input.py          # or: make bench
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "benchmarks"
JOB = ROOT / "jobs" / "benchmarks" / "gpt-1.7b.yaml"
SOURCES = {"web": (0.6, 20_000_000), "code": (0.3, 20_000_000), "books": (0.1, 20_000_000)}
"""Weight in the blend, and tokens."""
EATEN = 61_200
"""Tokens per second and GPU: 1.7B, 4x4, FP8, on an H200 (docs/benchmarks/2026-11-21-parallelism-h200.md: 1,071 ms)."""
TARGET = 10.0
"""Two workers are to give so many times what is eaten: a rank of a small model eats more."""
MICRO, LENGTH = 4, 4096
STEPS, PACED = 300, 30
INT32 = 4


def write(prefix: Path, tokens: int, seed: int) -> None:
    """An indexed data set of documents of about a thousand tokens, in four bytes each."""
    random = numpy.random.default_rng(seed)
    lengths = numpy.maximum(random.lognormal(6.5, 1.0, tokens // 500).astype(numpy.int32), 8)
    lengths = lengths[: int(numpy.searchsorted(numpy.cumsum(lengths), tokens))]
    total, count = int(lengths.sum()), len(lengths)
    random.integers(0, 250, total, dtype=numpy.int32).tofile(prefix.with_name(prefix.name + ".bin"))
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths.astype(numpy.int64))[:-1]]) * 4
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, INT32, count, count + 1)
    places = lengths.tobytes() + offsets.astype(numpy.int64).tobytes()
    documents = numpy.arange(count + 1, dtype=numpy.int64).tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(header + places + documents)


def measure(folder: Path, workers: int) -> dict[str, Any]:
    """Of one number of workers: seconds to open the data, tokens per second, CPU seconds, waits."""
    from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

    import torch.distributed as dist  # isort: skip

    from orchestrator.data.samples.datasets import build_datasets
    from orchestrator.data.tokenizers.tokenizer import load_tokenizer
    from orchestrator.planning.training_schedule.batch import BatchSchedule
    from orchestrator.runtime.batches import BatchStream, MicroBatchSampler
    from orchestrator.runtime.processes.device import select_device
    from orchestrator.runtime.steps.gpt import NextToken
    from orchestrator.spec.loading import load_job

    blend = [{"path": str(folder / name), "weight": weight} for name, (weight, _) in SOURCES.items()]
    overlay = folder / "input.yaml"
    overlay.write_text(json.dumps({"data": {"random_tokens": False, "blend": blend, "split": "100,0,0"}}))
    sizes = [f"batch.micro_batch_size={MICRO}", f"batch.global_batch_size={MICRO}", "schedule.train_iters=2000"]
    job = load_job([JOB, overlay], [*sizes, "evaluation.eval_interval=null"]).job
    device, schedule = select_device("cpu"), BatchSchedule.of(job)
    store: Any = vars(dist)["HashStore"]
    dist.init_process_group("gloo", rank=0, world_size=1, store=store())
    started = time.perf_counter()
    datasets = build_datasets(
        job.data,
        model=job.model,
        tokenizer=load_tokenizer(job.data.tokenizer),
        train_samples=schedule.train_samples,
        validation_samples=0,
        test_samples=0,
        cache_dir=folder / "index",
    )
    opened = time.perf_counter() - started
    assert datasets.train is not None
    sampler = MicroBatchSampler(schedule, 0, schedule.train_samples, 0)
    stream = BatchStream(datasets.train, sampler, NextToken().get_batch, device, workers, 1)
    [batches] = stream.iterators()
    for _ in range(20):
        next(batches)
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        batch = next(batches)
    seconds, own_cpu = time.perf_counter() - started, time.process_time() - cpu
    assert batch["tokens"].shape == (MICRO, LENGTH)
    waits = []
    for _ in range(PACED):
        time.sleep(MICRO * LENGTH / EATEN)
        started = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - started)
    del batches, stream, batch
    of_workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    dist.destroy_process_group()
    return {
        "workers": workers,
        "opened": opened,
        "rate": STEPS * MICRO * LENGTH / seconds,
        "own_ms": 1e3 * own_cpu / STEPS,
        "workers_cpu_ms": 1e3 * (of_workers.ru_utime + of_workers.ru_stime) / (STEPS + PACED + 20),
        "wait_ms": 1e3 * statistics.median(waits),
        "longest_ms": 1e3 * max(waits),
    }


def compare(repeats: int) -> list[dict[str, Any]]:
    """The best rate of some for each number of workers, each in a fresh process; the first one builds the index."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed, (source, (_, tokens)) in enumerate(SOURCES.items()):
            write(folder / source, tokens, seed)
        found: dict[int, list[dict[str, Any]]] = {}
        built = None
        for _ in range(repeats):
            for workers in (0, 1, 2):
                command = [sys.executable, "-W", "ignore", __file__, "--one", str(workers), str(folder)]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
                one = json.loads(output.splitlines()[-1])
                built = one["opened"] if built is None else built
                found.setdefault(workers, []).append(one)
                print(f"{workers} workers: {one['rate'] / 1e6:.1f} million tokens/s", flush=True)
    best = [max(ones, key=lambda one: float(one["rate"])) for ones in found.values()]
    return [{**one, "built": built} for one in best]


def page(rows: list[dict[str, Any]], repeats: int) -> str:
    """The page of a measurement."""
    table = "\n".join(
        f"| {one['workers']} | {one['rate'] / 1e6:.1f} | {one['rate'] / EATEN:.0f} | {one['own_ms']:.2f} "
        f"| {one['workers_cpu_ms']:.2f} | {one['wait_ms']:.2f} | {one['longest_ms']:.2f} |"
        for one in rows
    )
    tokens = sum(tokens for _, tokens in SOURCES.values()) / 1e6
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "megatron-core"))
    times = f"{rows[-1]['rate'] / EATEN:.0f}"
    rate = f"{rows[-1]['rate'] / 1e6:.1f}"
    every = f"{MICRO * LENGTH / EATEN * 1e3:.0f}"
    small = 0.5 * 989e12 / (6 * 345e6)
    return f"""# Input, {datetime.date.today()}

**Two workers give {rate} million tokens per second: {times} times what the hungriest rank measured on an H200 eats.**

| workers | million tokens/s | times what is eaten | CPU ms per micro-batch | of the workers | wait, ms | longest |
|---|---|---|---|---|---|---|
{table}

- A blend of three data sets, {tokens:.0f} million tokens of four bytes, read as a rank of
  `jobs/benchmarks/gpt-1.7b.yaml` reads it: micro-batches of {MICRO} sequences of {LENGTH:,} tokens
  (`tests/benchmarks/bench_input.py`). Workers are
  `data.num_workers` of each rank; on a GPU 2 where nothing is said.
- CPU time of the training process for a micro-batch, and of its workers together.
- "Wait" is what the training process waits for a micro-batch when it takes one every {every} ms, as the hungriest rank
  does: median and longest of {PACED}. A GPU has its kernels queued meanwhile.
- Eaten: {EATEN:,} tokens/s and GPU, 1.7B 4x4 in FP8 ([1,071 ms per step](2026-11-21-parallelism-h200.md)). In bf16 the
  hungriest row of [2026-11-22](2026-11-22-h200.md) is 1.7B 4x4 with 44,400, and of 7.1B under TP2 DP2 each rank reads
  22,600. A 345M model at half of the peak would eat about {round(small, -4):,.0f}.
- Opening the blend took {rows[0]["built"]:.2f} s with its sample indices to be built, {rows[-1]["opened"]:.2f} s with
  these found.
- [Tokenization](2026-11-20-tokenize.md) with two workers gives 4.03 million tokens/s, {4.03e6 / EATEN:.0f} times what
  is eaten.

{platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()},
{packages}. The best of {repeats} runs each; load average at the end {os.getloadavg()[0]:.1f}: above 2, others were
using the cores as well.

Measure again with `make bench`.
"""


def main() -> int:
    """Measure, write the page, and fail where two workers give too little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the page (docs/benchmarks)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        with contextlib.redirect_stdout(sys.stderr):
            found = measure(options.folder, options.one)
        print(json.dumps(found))
        return 0
    rows = compare(options.repeats)
    target = options.pages / f"{datetime.date.today()}-input.md"
    target.write_text(page(rows, options.repeats))
    print(f"{rows[-1]['rate'] / 1e6:.1f} million tokens/s; wrote {target}")
    return 0 if rows[-1]["rate"] >= TARGET * EATEN else 1


if __name__ == "__main__":
    sys.exit(main())
