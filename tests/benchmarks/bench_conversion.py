"""`checkpoint export` and `checkpoint import` against a plain copy of the same bytes on the same disk.

A model of Llama's kind with random weights in bf16 is made as a Hugging Face folder, imported, and exported again. The
checkpoint that is exported has an optimizer's state beside the weights, six times as large, as a training writes it; of
a model of the size of Llama 2 7B (`--large`) it has the weights alone, since few disks have the room.
A copy reads the bytes that a conversion writes from another file and writes them, with fsync at the end. Ways are
measured in turns, each in a fresh process, with what it reads out of the page cache.

    python tests/benchmarks/bench_conversion.py [--large]       # or: make bench
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from host_rows import Figure, save

BLOCK = 4 << 20
TARGET = 0.8
JOB = """
name: bench
model: {{num_layers: {layers}, {sizes},
  seq_length: 512, vocab_size: 32000, activation: swiglu, normalization: RMSNorm, position_embedding_type: rope,
  add_bias_linear: false, untie_embeddings_and_output_weights: true}}
precision: {{dtype: bf16}}
data: {{random_tokens: true}}
optimizer: {{lr: 1.0e-5}}
schedule: {{train_iters: 1}}
batch: {{micro_batch_size: 1, global_batch_size: 1}}
"""
SMALL = "hidden_size: 2048, num_attention_heads: 16, num_query_groups: 4, ffn_hidden_size: 5632"
LARGE = "hidden_size: 4096, num_attention_heads: 32, ffn_hidden_size: 11008"
LARGE_LAYERS = 32


def make(folder: Path, layers: int, large: bool) -> None:
    """The Hugging Face folder `hf`, and the checkpoint `trained`: with an optimizer's state, if it is not large."""
    from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

    import torch  # isort: skip

    from orchestrator.conversion.hugging_face.config_json import to_config
    from orchestrator.conversion.hugging_face.families.llama import LLAMA
    from orchestrator.conversion.hugging_face.hf_import import _objects, _parts, _their_shapes
    from orchestrator.conversion.tensors.safetensors_reader import PublishedWeights
    from orchestrator.conversion.tensors.shards import Entry, ShardFiles, in_shards
    from orchestrator.conversion.tensors.tensor_writer import TensorPart, write_tensors
    from orchestrator.planning.vocabulary import vocabulary
    from orchestrator.run_directory.checkpoints.commit_markers import read_commit, write_commit
    from orchestrator.spec.loading import dump_resolved, load_text

    job = load_text(JOB.format(layers=layers, sizes=LARGE if large else SMALL)).job
    words = vocabulary(job)
    weights = list(LLAMA.weights(job.model))
    shapes = _their_shapes(weights, job.model, words)
    entries = [Entry(name, shape, torch.bfloat16) for name, shape in shapes.items()]
    (folder / "hf").mkdir()
    with ShardFiles(folder / "hf", in_shards(entries, 1_000_000_000)) as files:
        for entry in entries:
            files.write(entry.name, torch.randn(entry.shape, dtype=torch.bfloat16))
        files.finish()
    config = to_config(job.model, LLAMA, words.size) | {"torch_dtype": "bfloat16"}
    (folder / "hf" / "config.json").write_text(json.dumps(config))
    (folder / "resolved.json").write_text(dump_resolved(job))
    convert("import", folder)
    if large:
        (folder / "imported").rename(folder / "trained")
        return
    parts = _parts(PublishedWeights(folder / "hf", LLAMA), weights, job.model, words)

    def of_optimizer(part: TensorPart, name: str) -> TensorPart:
        key = f"optimizer.state.{name}.{part.key}"
        return TensorPart(key, part.place, part.within, part.shape, torch.float32, lambda: torch.randn(part.shape))

    state = [of_optimizer(part, name) for part in parts for name in ("exp_avg", "exp_avg_sq", "fp32_param")]
    trained, imported = folder / "trained", folder / "imported"
    shutil.copytree(imported, trained, ignore=shutil.ignore_patterns("*.distcp", ".metadata", "commit.json"))
    records = dict(write_tensors(trained, [*parts, *state], _objects(weights), 2, lambda count: None))
    commit = read_commit(imported)
    assert commit is not None
    from orchestrator.run_directory.checkpoints.commit_markers import file_record

    records |= {name: file_record(trained / name) for name in commit.files if not name.endswith(".distcp")}
    write_commit(trained, iteration=1, consumed_samples=1, files=records)


def convert(way: str, folder: Path) -> tuple[float, float, int]:
    """Seconds and CPU seconds of a conversion, without starting Python and importing libraries; the bytes it wrote."""
    from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

    import torch  # isort: skip

    from orchestrator.conversion.hugging_face.families.llama import LLAMA
    from orchestrator.conversion.hugging_face.hf_export import export
    from orchestrator.conversion.hugging_face.hf_import import import_weights
    from orchestrator.conversion.tensors.threads import default_threads
    from orchestrator.self_contained_checkpoints import job_of
    from orchestrator.spec.loading import load_resolved

    torch.set_num_threads(1)
    threads = default_threads()
    started, cpu = time.perf_counter(), time.process_time()
    if way == "import":
        done = import_weights(
            folder / "hf", load_resolved(folder / "resolved.json"), LLAMA, folder / "imported", threads
        )
    else:
        source, target = folder / "trained", folder / "exported"
        options: dict[str, Any] = {"most_bytes": 1_000_000_000, "dtype": None, "tokenizer": "no", "threads": threads}
        done = export(source, job_of(source), target, **options)
    return time.perf_counter() - started, time.process_time() - cpu, int(done["bytes"])


def copy(folder: Path) -> tuple[float, float, int]:
    """Seconds and CPU seconds of a plain copy of the Hugging Face folder's weights, and their bytes."""
    started, cpu, size = time.perf_counter(), time.process_time(), 0
    buffer = memoryview(bytearray(BLOCK))
    (folder / "copied").mkdir()
    for path in sorted((folder / "hf").glob("*.safetensors")):
        with open(path, "rb", buffering=0) as source, open(folder / "copied" / path.name, "wb", buffering=0) as target:
            while count := source.readinto(buffer):
                target.write(buffer[:count])
                size += count
            os.fsync(target.fileno())
    return time.perf_counter() - started, time.process_time() - cpu, size


def measured(way: str, folder: Path) -> dict[str, float]:
    """One way in a fresh process: seconds, bytes, seconds of CPU, peak memory, and the whole command's seconds."""
    for name in ("copied", "exported", "imported"):
        shutil.rmtree(folder / name, ignore_errors=True)
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    started = time.perf_counter()
    command = [sys.executable, "-W", "ignore", __file__, "--way", way, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return {**json.loads(output.splitlines()[-1]), "command": time.perf_counter() - started}


def run_way(way: str, folder: Path) -> None:
    """Carry out one way in this process, and print what it took."""
    if way == "make":
        make(folder, layers=int(os.environ["BENCH_LAYERS"]), large="BENCH_LARGE" in os.environ)
        return
    seconds, cpu, size = copy(folder) if way == "copy" else convert(way, folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "bytes": size, "cpu": cpu, "peak": peak}))


def compare(folder: Path, repeats: int, layers: int, large: bool) -> dict[str, list[dict[str, float]]]:
    """All ways in turns."""
    environment = {**os.environ, "BENCH_LAYERS": str(layers), **({"BENCH_LARGE": "1"} if large else {})}
    subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--way", "make", str(folder)], check=True, env=environment
    )
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ("copy", "export", "import")}
    for repeat in range(repeats):
        for way, results in found.items():
            load = os.getloadavg()[0]
            results.append({**measured(way, folder), "load": load})
            print(f"repeat {repeat + 1}: {way} {json.dumps(results[-1])}", flush=True)
    return found


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians of each way, and its bytes per second as a share of a copy's."""
    said: dict[str, dict[str, float]] = {}
    for way, ones in found.items():
        medians = {key: statistics.median(one[key] for one in ones) for key in ones[0]}
        said[way] = {**medians, "rate": medians["bytes"] / medians["seconds"]}
    for each in said.values():
        each["share"] = each["rate"] / said["copy"]["rate"]
    return said


def figures(said: dict[str, dict[str, float]]) -> list[Figure]:
    """The rows of a measurement."""
    names = {"copy": "plain copy, fsync", "export": "`checkpoint export`", "import": "`checkpoint import`"}
    return [
        (name, quantity, unit, f"{said[way][key] / scale:.{digits}f}")
        for way, name in names.items()
        for quantity, unit, key, scale, digits in (
            ("time", "s", "seconds", 1, 2),
            ("rate", "MB/s", "rate", 1e6, 0),
            ("of a copy", "", "share", 1, 2),
            ("CPU time", "s", "cpu", 1, 2),
            ("peak memory", "GB", "peak", 1e9, 2),
            ("whole command", "s", "command", 1, 1),
        )
    ]


def main() -> int:
    """Measure, keep the rows, and fail where neither the disk nor the CPU is what bounds an export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way (5)")
    parser.add_argument("--layers", type=int, default=12, help="layers of the model (12: 1.34 GB)")
    parser.add_argument("--large", action="store_true", help="a model of 6.7 billion parameters: 40 GB of disk")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; a temporary one by default")
    parser.add_argument("--way", choices=("make", "copy", "export", "import"), help=argparse.SUPPRESS)
    parser.add_argument("there", nargs="?", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_way(options.way, options.there)
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        layers = LARGE_LAYERS if options.large else options.layers
        found = compare(Path(folder), options.repeats, layers, options.large)
    said = summary(found)
    loads = [one["load"] for ones in found.values() for one in ones]
    repeats = [[one["seconds"] for one in ones] for ones in found.values()]
    benchmark = "conversion-7b" if options.large else "conversion"
    save(benchmark, figures(said), loads, ("torch", "megatron-core", "safetensors"), repeats)
    print(f"export at {said['export']['share']:.2f}, import at {said['import']['share']:.2f} of a copy")
    busy = {way: each["cpu"] / each["seconds"] / len(os.sched_getaffinity(0)) for way, each in said.items()}
    return 0 if all(said[way]["share"] >= TARGET or busy[way] >= TARGET for way in ("export", "import")) else 1


if __name__ == "__main__":
    sys.exit(main())
