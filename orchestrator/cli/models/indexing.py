"""`orchestrator data index`: the sample indices of a job, built before it starts, beside what was planned."""

from __future__ import annotations

import json
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir, print_json
from orchestrator.data.samples.index_requests import (
    IndexAnswer,
    IndexedSet,
    IndexedSource,
    IndexRequest,
    sample_index_dir,
)
from orchestrator.data.source_survey import data_problems, survey_job
from orchestrator.errors import JobError, SpecError, UserError
from orchestrator.planning.blend import blend_report, samples_needed
from orchestrator.planning.blend.report import PartPlan, SourcePlan
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.safe_path import module_command
from orchestrator.spec.loading import LoadedJob, load_job

PROGRAM = "orchestrator.data.sample_indexing"


def command(jobs: JobFiles, overrides: Overrides = None, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Build the sample indices that the training would build at start, and show what they hold. The training then finds
    them, and no GPU waits.

    \b
    Example:
      orchestrator data index job.yaml
    """
    loaded = load_job(jobs, overrides or [])
    job = loaded.job
    _check_data(loaded)
    batch = BatchSchedule.of(job)
    report = blend_report(job, batch)
    if report.stops:
        raise UserError("\n       ".join(report.stops), code="index_cannot_be_built")
    needed = samples_needed(job, batch)
    request = IndexRequest(
        data=job.data,
        model=job.model,
        train_samples=needed.train,
        validation_samples=needed.validation,
        cache_dir=sample_index_dir(job.data, runs_dir_of(job, runs_dir)),
    )
    answer = _build(request)
    planned = {"train": report.train, "validation": report.validation}
    if as_json:
        print_json({**answer.to_dict(), "planned": {name: part.to_dict() for name, part in planned.items()}})
        return
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
    for each in answer.sets:
        console.print(_table(each, planned[each.part], batch, job.model.seq_length))
        console.print()
    built = f"{answer.built} files built in {answer.seconds:.1f} s" if answer.built else "nothing to build: found"
    console.print(f"{built} in {answer.folder}", soft_wrap=True)


def _check_data(loaded: LoadedJob) -> None:
    """Raises UserError or SpecError when the data of a job cannot be indexed now."""
    data = loaded.job.data
    if data.random_tokens:
        raise UserError("data.random_tokens: random tokens have no index", code="random_tokens_without_index")
    if loaded.job.has_task:
        raise UserError("task: its examples have no index", code="task_without_index")
    found = survey_job(loaded.job)
    if problems := data_problems(data, found, needed=True):
        raise SpecError(problems=loaded.places.ordered([loaded.places.placed(problem) for problem in problems]))
    if absent := [source.entry.path for source in found if source.is_to_be_made]:
        raise UserError(
            f"not there yet: {', '.join(absent)}; `orchestrator data prepare` makes what a job lacks",
            code="missing_data_set",
        )


def _build(request: IndexRequest) -> IndexAnswer:
    """Start the program that builds. Raises UserError or JobError with what it says when it fails."""
    samples = request.train_samples + request.validation_samples
    print(f"indexing {samples:,} samples in {request.cache_dir}", file=sys.stderr, flush=True)
    done = subprocess.run(
        module_command(PROGRAM),
        input=json.dumps(request.to_dict()),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return IndexAnswer.from_dict(json.loads(done.stdout.splitlines()[-1]))
    _, found, said = done.stderr.rpartition("error: ")
    if found and done.returncode == UserError.exit_code:
        raise UserError(said.strip(), code="index_not_built")
    lines = done.stderr.strip().splitlines()
    raise JobError(
        f"the index was not built: {said.strip() if found else lines[-1] if lines else 'killed'}",
        code="index_not_built",
    )


def _table(made: IndexedSet, planned: PartPlan, batch: BatchSchedule, seq_length: int) -> Table:
    """One data set: what its index holds beside what was planned."""
    times = f", {planned.evaluations} times" if made.part == "validation" else ""
    name = made.name if made.part == made.name else f"{made.part} ({made.name})"
    columns = ("source", "samples", "planned", "tokens", "tokens held", "epochs", "planned", "again from step")
    table = Table(
        title=f"Index for {name}: {made.samples:,} samples of {seq_length:,} tokens{times}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "source" else "right")
    rows = planned.sources
    if len(made.sources) < len(rows):  # a source of a validation blend, evaluated by itself
        rows = tuple(row for row in rows if row.path == made.sources[0].path)[:1]
    for source, row in zip(made.sources, rows, strict=True):
        table.add_row(*_row(source, row, made, batch, seq_length))
    return table


def _row(
    source: IndexedSource, planned: SourcePlan, made: IndexedSet, batch: BatchSchedule, seq_length: int
) -> tuple[str, ...]:
    alone = planned.samples_alone if len(made.sources) == 1 else None
    samples = planned.samples if alone is None else alone
    tokens, held = source.samples * seq_length, planned.tokens_held or 0
    epochs, expected = tokens / source.tokens_held, f"{samples * seq_length / held:.2f}" if held else ""
    if planned.epochs is None:  # samples of sentences: how many an epoch has is known from the index alone
        epochs, expected = source.samples * source.epochs_built / source.samples_built, ""
    elif source.samples_per_epoch is not None:
        epochs = source.samples / source.samples_per_epoch
        expected = f"{samples / planned.samples_held:.2f}" if planned.samples_held else ""
    again = ""
    if made.part == "train" and source.second_epoch_at is not None:
        again = f"{batch.iteration_of(source.second_epoch_at) + 1:,}"
    return (
        source.path,
        f"{source.samples:,}",
        f"{samples:,}",
        f"{tokens:,}",
        f"{source.tokens_held:,}",
        f"{epochs:.2f}",
        expected,
        again,
    )
