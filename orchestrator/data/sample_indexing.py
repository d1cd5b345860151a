"""`python -m orchestrator.data.sample_indexing`: builds a job's sample indices before it starts, and describes them.

It reads an IndexRequest as JSON on standard input and writes an IndexAnswer on standard output.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from orchestrator.data.samples.index_requests import IndexAnswer, IndexedSet, IndexRequest
from orchestrator.errors import MissingDependency, OrchestratorError

try:
    # isort: split
    import torch

    from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
    from orchestrator.data.samples.datasets import build_datasets
    from orchestrator.data.samples.index_statistics import measured
    from orchestrator.data.tokenizers.tokenizer import load_tokenizer
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("torch", "megatron", "numpy", "tokenizers"):
        raise
    missing: str | None = error.name
else:
    missing = None


def build(request: IndexRequest) -> IndexAnswer:
    """Build what is missing; the files are those that the training will look for."""
    if missing is not None:
        raise MissingDependency(f"data index needs {missing}: pip install 'megatron-orchestrator[train]'")
    # megatron-core's data sets ask a process group, also where there is one process. torch's stubs lack this name.
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        datasets = build_datasets(
            request.data,
            model=request.model,
            tokenizer=load_tokenizer(request.data.tokenizer),
            train_samples=request.train_samples,
            validation_samples=request.validation_samples,
            test_samples=0,
            cache_dir=request.cache_dir,
        )
    finally:
        torch.distributed.destroy_process_group()
    sets: list[tuple[str, str, int, Any]] = [("train", "train", request.train_samples, datasets.train)]
    sets += [("validation", name, request.validation_samples, made) for name, made in datasets.validation.items()]
    assert datasets.index is not None, "this is rank 0"
    return IndexAnswer(
        folder=str(datasets.index.folder),
        built=datasets.index.built,
        seconds=datasets.index.seconds,
        sets=tuple(
            IndexedSet(part, name, samples, measured(made, samples, request.model.seq_length))
            for part, name, samples, made in sets
        ),
    )


def main() -> int:
    """Answer one request; returns the exit code."""
    try:
        answer = build(IndexRequest.from_dict(json.load(sys.stdin)))
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(answer.to_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
