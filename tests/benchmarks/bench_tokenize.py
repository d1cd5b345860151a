"""Tokens per second of `orchestrator data tokenize` against the way of Megatron-LM's `tools/preprocess_data.py`.

That way, written here from its description: worker processes of a pool encode one document at a time (`imap` with a
chunk size), hand back Python lists of ids, and the parent adds each document to megatron-core's builder. Both read the
same JSON lines with the same tokenizer, on the same cores, in turns; the output must be the same to the byte.

    python tests/benchmarks/bench_tokenize.py       # or: make bench

Libraries are imported where they are used: workers import this file again, and must not pay for the other way's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

WORKERS = 2
CHUNK_SIZE = 32
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}

encoder: Any = None


def start_worker(tokenizer: str) -> None:
    """Load the tokenizer once in each worker of the pool."""
    global encoder
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(tokenizer)


def encode_line(line: str) -> list[int]:
    """One document: from its JSON line to a list of ids and the end of the document."""
    ids: list[int] = encoder.encode(json.loads(line)["text"]).ids
    if ids:
        ids.append(encoder.token_to_id("<|endoftext|>"))
    return ids


def reference(corpus: Path, tokenizer: Path, prefix: Path) -> None:
    """One document at a time through a process pool, into megatron-core's builder."""
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    from tokenizers import Tokenizer

    dtype = DType.optimal_dtype(Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    with (
        open(corpus, encoding="utf-8") as lines,
        multiprocessing.Pool(WORKERS, initializer=start_worker, initargs=(str(tokenizer),)) as pool,
    ):
        for ids in pool.imap(encode_line, lines, CHUNK_SIZE):
            builder.add_item(torch.IntTensor(ids))
            builder.end_document()
    builder.finalize(f"{prefix}.idx")


def ours(corpus: Path, tokenizer: Path, prefix: Path) -> None:
    """The product's own way, called as its program calls it."""
    from orchestrator.data.__main__ import run
    from orchestrator.data.request import TokenizeRequest

    request = TokenizeRequest(
        inputs=(corpus,),
        output_prefix=prefix,
        tokenizer_type="huggingface",
        tokenizer_path=str(tokenizer),
        append_eod=True,
        workers=WORKERS,
    )
    assert run("tokenize", request, as_json=True) == 0


WAYS = {"reference": reference, "ours": ours}


def measure(way: str, corpus: Path, tokenizer: Path, prefix: Path) -> tuple[float, float]:
    """Seconds, and seconds of CPU over all processes, of one way in a fresh process.

    Importing libraries is left out; starting workers and writing is not.
    """
    command = [sys.executable, __file__, "--way", way, str(corpus), str(tokenizer), str(prefix)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    seconds, cpu = output.strip().splitlines()[-1].split()
    return float(seconds), float(cpu)


def run_way(way: str, corpus: Path, tokenizer: Path, prefix: Path) -> None:
    """Carry out one way in this process and print its seconds and seconds of CPU."""
    for library in ("tokenizers", "megatron.core.datasets.indexed_dataset", "orchestrator.data.tokenization"):
        importlib.import_module(library)
    cores = sorted(os.sched_getaffinity(0))[:WORKERS]
    os.sched_setaffinity(0, cores)
    started, cpu = time.perf_counter(), cpu_seconds()
    WAYS[way](corpus, tokenizer, prefix)
    print(time.perf_counter() - started, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """CPU time of this process and of its workers that have ended."""
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + workers.ru_utime + workers.ru_stime


def write_corpus(path: Path, copies: int) -> int:
    """The source of Python's standard library as JSON lines, one file a document; returns the bytes of text."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = [
        file.read_bytes().decode()
        for file in sorted(root.rglob("*.py"))
        if not EXCLUDED & set(file.relative_to(root).parts) and file.stat().st_size
    ]
    with open(path, "w", encoding="utf-8") as lines:
        for _ in range(copies):
            lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return copies * sum(len(text.encode()) for text in texts)


def train(corpus: Path, tokenizer: Path, vocab_size: int) -> None:
    """A byte-level BPE of the corpus."""
    command = [sys.executable, "-m", "orchestrator.data", "train-tokenizer", str(corpus)]
    subprocess.run([*command, "--output", str(tokenizer), "--vocab-size", str(vocab_size)], check=True)


def compare(folder: Path, repeats: int, vocab_size: int) -> dict[str, Any]:
    """Measure both ways in turns; returns medians, all seconds, and the ratio. Fails when the outputs differ."""
    corpus, tokenizer = folder / "stdlib.jsonl", folder / "tokenizer.json"
    text_bytes = write_corpus(corpus, copies=1)
    train(corpus, tokenizer, vocab_size)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    loads = []
    for repeat in range(repeats):
        for way in WAYS:
            for stale in folder.glob(f"{way}.*"):
                stale.unlink()
            loads.append(os.getloadavg()[0])
            wall, busy = measure(way, corpus, tokenizer, folder / way)
            seconds[way].append(wall)
            cpu[way].append(busy)
            print(f"repeat {repeat + 1}: {way} {wall:.2f} s, {busy:.2f} s of CPU", flush=True)
        for ending in ("bin", "idx"):
            theirs, mine = ((folder / f"{way}.{ending}").read_bytes() for way in WAYS)
            assert theirs == mine, f"the .{ending} files differ"
    tokens = (folder / "ours.bin").stat().st_size // 2
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "seconds": seconds,
        "cpu": {way: statistics.median(values) for way, values in cpu.items()},
        "medians": medians,
        "ratio": medians["reference"] / medians["ours"],
        "tokens": tokens,
        "text_bytes": text_bytes,
        "documents": corpus.read_bytes().count(b"\n"),
        "vocab_size": vocab_size,
        "loads": (min(loads), max(loads)),
    }


def figures(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """The rows of a measurement."""
    return [
        (name, quantity, unit, value)
        for way, name in (("reference", "one document at a time"), ("ours", "`orchestrator data tokenize`"))
        for quantity, unit, value in (
            ("time", "s", f"{result['medians'][way]:.2f}"),
            ("tokens", "million/s", f"{result['tokens'] / result['medians'][way] / 1e6:.2f}"),
            ("text", "MB/s", f"{result['text_bytes'] / result['medians'][way] / 1e6:.1f}"),
            ("CPU time", "s", f"{result['cpu'][way]:.2f}"),
        )
    ]


def main() -> int:
    """Measure, keep the rows, and fail below twice the reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way (5)")
    parser.add_argument("--vocab-size", type=int, default=8192, help="size of the tokenizer (8192)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_way(options.way, *options.files)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        result = compare(Path(folder), options.repeats, options.vocab_size)
    from host_rows import save

    packages = ("tokenizers", "numpy", "torch", "megatron-core")
    save("tokenize", figures(result), result["loads"], packages, list(result["seconds"].values()))
    print(f"{result['ratio']:.2f} times the reference")
    return 0 if result["ratio"] >= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
