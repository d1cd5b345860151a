"""Measuring checkpoints with real ranks, without a launcher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator import evaluation
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, dump_asked
from orchestrator.run_directory.results.record import Result, read_result
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from support.faults import Ranks
from support.rank_processes import Started
from support.training import make_run

PROGRAM = Path(evaluation.__file__).with_name("__main__.py")


def start(
    ranks: Ranks,
    run: RunDir,
    job: JobSpec,
    asked: Sequence[EvaluationRequest],
    output: Path,
    *more: str,
    **options: Any,
) -> Started:
    """Start the program at the job's layout, with batches of two full sequences."""
    output.mkdir(exist_ok=True)
    arguments = [f"--asked={dump_asked(asked)}", f"--output={output}", f"--summary={output / 'summary.json'}"]
    return ranks.start(run, job, *arguments, "--batch-size=2", "--quiet", *more, program=PROGRAM, **options)


def evaluate(
    ranks: Ranks, run: RunDir, job: JobSpec, asked: Sequence[EvaluationRequest], output: Path, *more: str
) -> list[Result]:
    """The results, in the order of what was asked."""
    assert start(ranks, run, job, asked, output, *more).wait() == 0
    found = [read_result(Path(path)) for path in json.loads((output / "summary.json").read_text())]
    return [result for result in found if result is not None]


def moved(run: RunDir, folder: Path, job: JobSpec) -> RunDir:
    """A run of a job of another layout with the same checkpoints."""
    other = make_run(folder, job)
    other.checkpoints.symlink_to(run.checkpoints)
    return other
