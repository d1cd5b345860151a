"""`orchestrator checkpoint`: list, verify, export, import and reshape checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.api.starts.run_sentences import label
from orchestrator.cli.common import AsJson, RunName, RunsDir, aligned, print_json
from orchestrator.cli.models.hugging_face import export, import_
from orchestrator.cli.models.reshape import reshape
from orchestrator.errors import RunNotFound, UserError
from orchestrator.launch.runs import find_run
from orchestrator.quantities import disk_size
from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed, read_commit, verify
from orchestrator.run_directory.rundir import RunDir, default_runs_dir

app = typer.Typer(
    help="List, verify, export, import and reshape checkpoints.",
    epilog="Example: orchestrator checkpoint list gpt-small",
    no_args_is_help=True,
)
app.command("export")(export)
app.command("import")(import_)
app.command("reshape")(reshape)


@app.command("list")
def list_(run_name: RunName, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """List the committed checkpoints of a run, oldest first, and their exports during training.

    \b
    Example:
      orchestrator checkpoint list gpt-small
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    commits = {commit.iteration: commit for commit in committed(run)}
    exports = dict(run.export_dirs("hf"))
    iterations = sorted(commits.keys() | exports.keys())
    if as_json:
        print_json([_listed(number, commits.get(number), exports.get(number)) for number in iterations])
    elif iterations:
        rows = [_row(number, commits.get(number), exports.get(number)) for number in iterations]
        columns = ["ITERATION", "SAMPLES", "SIZE", "FOLDER", *(["EXPORT"] if exports else [])]
        typer.echo(aligned([columns, *(row[: len(columns)] for row in rows)]))
    else:
        typer.echo(f"run {label(run)} has no checkpoint")


def _listed(iteration: int, commit: Commit | None, export: Path | None) -> dict[str, Any]:
    """A checkpoint and what was exported of it, of which only one may still be there."""
    return {
        "iteration": iteration,
        "consumed_samples": commit.consumed_samples if commit else None,
        "bytes": commit.bytes if commit else None,
        "files": len(commit.files) if commit else None,
        "path": str(commit.path) if commit else None,
        "exports": {"hf": str(export)} if export else {},
    }


def _row(iteration: int, commit: Commit | None, export: Path | None) -> list[str]:
    exported = str(export) if export else "-"
    if commit is None:
        return [str(iteration), "-", "-", "-", exported]
    return [str(iteration), str(commit.consumed_samples), disk_size(commit.bytes), str(commit.path), exported]


@app.command("verify")
def verify_(
    which: Annotated[
        str,
        typer.Argument(
            metavar="RUN|PATH",
            help="A run, for all its checkpoints, or the folder of one checkpoint.",
        ),
    ],
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of a checkpoint and compare it with its commit marker. Damage is reported with its place.

    \b
    Example:
      orchestrator checkpoint verify gpt-small
      orchestrator checkpoint verify runs/gpt-small/3f9a12cd/checkpoints/iter_0000500
    """
    folders = _folders(which, runs_dir or default_runs_dir())
    findings = {folder: verify(folder) for folder in folders}
    if as_json:
        print_json([{"path": str(folder), "ok": not found, "findings": found} for folder, found in findings.items()])
    elif not folders:
        typer.echo(f"{which} has no checkpoint")
    for folder, found in findings.items() if not as_json else ():
        for finding in found:
            typer.echo(finding, err=True)
        commit = read_commit(folder)
        if not found and commit is not None:
            typer.echo(f"{folder}: whole, {len(commit.files)} files, {disk_size(commit.bytes)}")
    if any(findings.values()):
        raise typer.Exit(1)


def _folders(which: str, runs_dir: Path) -> list[Path]:
    """The checkpoint folders that a person means: those of a run, or the one at a path."""
    path = Path(which)
    if path.is_dir() and path.parent.name == RunDir(path).checkpoints.name:
        return [path]
    try:
        run = find_run(which, runs_dir)
    except RunNotFound:
        if (path / "config.json").is_file() and read_commit(path) is None:
            raise UserError(
                f"{which} is a Hugging Face model: nothing says what its bytes should be",
                code="checkpoint_without_checksums",
            ) from None
        if path.is_dir():
            return [path]
        raise
    return [folder for _, folder in run.checkpoint_dirs()]
