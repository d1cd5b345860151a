"""`python -m orchestrator.evaluation RUN_DIR|CHECKPOINT --asked JSON`: measure a checkpoint on some tasks."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.evaluation.base import Task, TaskContext
from orchestrator.evaluation.journal import Journal
from orchestrator.evaluation.rank_calls import RankCalls, follow
from orchestrator.evaluation.task_batches import BatchedNetwork, Progress
from orchestrator.evaluation.tasks.registry import make_task
from orchestrator.fields.values import resolve_environment
from orchestrator.inference import Model
from orchestrator.inference.program import add_weights, exit_code, loaded
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, checkpoint_digest, load_asked
from orchestrator.run_directory.results.record import Result, journal_path, read_result, result_path, write_result
from orchestrator.run_directory.rundir import write_atomically
from orchestrator.self_contained_checkpoints import open_weights

_PROGRESS_SECONDS = 5.0
_PATIENCE_SECONDS = 24 * 3600.0
"""Ranks wait this long for rank 0, which may have much to read; when it ends, the launcher ends them."""


def main() -> int:
    """Write a result for each task, and the paths of all of them to the file that --summary names."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.evaluation", description=__doc__)
    add_weights(parser)
    parser.add_argument("--asked", required=True, help="the tasks, as results/evaluation_request.py dumps them")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="sequences of full length that fit at once")
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    arguments = parser.parse_args()
    return exit_code(_evaluate, arguments)


def _evaluate(arguments: argparse.Namespace) -> None:
    job = open_weights(arguments.weights.absolute()).job
    for name, value in job.launch.env.items():
        os.environ[name] = resolve_environment(value)
    tasks: list[tuple[EvaluationRequest, Task]] = []
    if int(os.environ.get("RANK", "0")) == 0:
        # Before the network is loaded, which may take long: what is wrong with a file is said at once.
        setting = TaskContext(job, load_tokenizer(job.data.tokenizer))
        tasks = [(asked, make_task(asked, setting)) for asked in load_asked(arguments.asked)]
    with loaded(arguments, _PATIENCE_SECONDS) as model:
        if not model.is_first:
            follow(model)
            return
        paths: list[str] = []
        with RankCalls(model) as rank_calls:
            for asked, task in tasks:
                paths.append(str(_measure(asked, task, rank_calls, model, arguments)))
                # At once: a task that fails takes nothing away from those before it.
                write_atomically(arguments.summary, json.dumps(paths))


def _measure(
    asked: EvaluationRequest, task: Task, rank_calls: RankCalls, model: Model, arguments: argparse.Namespace
) -> Path:
    """The path of the task's result, which is there afterwards."""
    key = asked.key(checkpoint_digest(model.commit.files), model.tokenizer.content_hash, task.contents)
    path = result_path(arguments.output, model.commit.iteration, asked.name, key)
    journal = Journal(journal_path(path))
    if arguments.again:
        path.unlink(missing_ok=True)
        journal.remove()
        journal = Journal(journal_path(path))
    elif (known := read_result(path)) is not None and known.key == key:
        return path
    began = time.time()
    batch_tokens = arguments.batch_size * model.job.model.seq_length
    found = task.measure(BatchedNetwork(rank_calls, journal, batch_tokens, _progress(asked.name, arguments.quiet)))
    now = time.time()
    result = Result(
        name=asked.name,
        task=asked.kind,
        key=key,
        iteration=model.commit.iteration,
        checkpoint=str(model.commit.path),
        metrics=found.metrics,
        counts=found.counts,
        options=asked.options,
        files=asked.files,
        finished=now,
        seconds=now - began,
        setting=_setting(model, task.libraries),
    )
    write_result(path, result)
    journal.remove()
    return path


def _setting(model: Model, libraries: Sequence[str]) -> dict[str, Any]:
    degrees, network = model.job.parallelism, model.network
    return {
        "tensor_model_parallel_size": degrees.tensor_model_parallel_size,
        "pipeline_model_parallel_size": degrees.pipeline_model_parallel_size,
        "dtype": model.job.precision.dtype,
        "device": network.device.name,
        **{name: version(name) for name in ("torch", "megatron-core", *libraries)},
    }


def _progress(name: str, quiet: bool) -> Progress:
    """Prints a line now and then."""
    last, out = time.monotonic(), sys.stdout

    def tell(done: int, total: int) -> None:
        nonlocal last
        if not quiet and time.monotonic() - last > _PROGRESS_SECONDS:
            last = time.monotonic()
            print(f"{name}: {done:,} of {total:,}", file=out, flush=True)

    return tell


if __name__ == "__main__":
    sys.exit(main())
