"""`orchestrator delete`: move runs, sweeps and checkpoints to the trash, and put them back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.api.housekeeping.checkpoints import Keep
from orchestrator.api.housekeeping.deletion import Doomed, cells_lost, checkpoints, delete, runs_and_sweeps
from orchestrator.api.housekeeping.emptying import deleted_as, undo
from orchestrator.api.housekeeping.targets import find_target, the_only_run
from orchestrator.cli.common import AsJson, RunsDir, aligned, print_json
from orchestrator.cli.runs.housekeeping.common import Yes, ask
from orchestrator.errors import UserError
from orchestrator.quantities import disk_size
from orchestrator.run_directory.rundir import RunDir, default_runs_dir, iteration_of


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|SWEEP|CHECKPOINT...",
            help="Run ids or their beginnings, names of runs or sweeps, or paths, also of single checkpoints.",
        ),
    ],
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last", metavar="N", min=0, help="Delete only checkpoints: all but the N newest.", show_default=False
        ),
    ] = None,
    keep: Annotated[
        Literal["best"] | None,
        typer.Option("--keep", help="Delete only checkpoints: all but the one with the lowest loss."),
    ] = None,
    is_undone: Annotated[
        bool, typer.Option("--undo", help="Put back what was deleted last under these names.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and its size; delete nothing.")
    ] = False,
    yes: Yes = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Delete runs, sweeps with their cells, or checkpoints of runs: they move to the trash, `.trash` in the runs
    folder, which `orchestrator prune` empties. Live and queued runs are refused, and weights that another run still
    needs. Their MLflow runs are deleted too. A deleted cell of a sweep is not trained again.

    \b
    Example:
      orchestrator delete 3f9a lr-sweep --dry-run
      orchestrator delete gpt-small --keep-last 1 --keep best
      orchestrator delete runs/gpt-small/3f9a12cd/checkpoints/iter_0000500
      orchestrator delete 3f9a --undo
    """
    folder = runs_dir or default_runs_dir()
    keeps = Keep(keep_last or 0, keep == "best") if keep_last is not None or keep is not None else None
    if is_undone:
        if keeps is not None or dry_run:
            raise UserError(
                "--undo puts back all that was deleted together: leave out the other options",
                code="conflicting_options",
            )
        _put_back(names, folder, as_json=as_json)
        return
    doomed = _doomed(names, folder, keeps)
    total = sum(each.bytes for each in doomed)
    if not as_json:
        rows = [["DELETE", "SIZE"], *([each.name, disk_size(each.bytes)] for each in doomed)]
        typer.echo(aligned(rows) if doomed else "nothing is to be deleted")
        for sweep, number in sorted(cells_lost(doomed, folder).items()):
            typer.echo(f"sweep {sweep} stays, without {number} of its cells")
    if dry_run or not doomed:
        if as_json:
            print_json({"deleted": [], "would_delete": [each.to_json(folder) for each in doomed], "bytes": total})
        elif doomed:
            typer.echo(f"{disk_size(total)} would go to the trash; nothing was deleted")
        return
    if not ask(f"delete {_counted(doomed)}, {disk_size(total)}?", yes=yes):
        typer.echo("nothing was deleted", err=True)
        raise typer.Exit(2)
    delete(doomed, folder)
    if as_json:
        print_json({"deleted": [each.to_json(folder) for each in doomed], "would_delete": [], "bytes": total})
        return
    typer.echo(f"{_counted(doomed)} deleted, {disk_size(total)}")
    typer.echo(
        "      `orchestrator prune` frees the disk; until then, `orchestrator delete NAME --undo` puts them back"
    )


def _doomed(names: Sequence[str], folder: Path, keep: Keep | None) -> list[Doomed]:
    single = [path for name in names if (path := _checkpoint(name)) is not None]
    targets = [find_target(name, folder) for name in names if _checkpoint(name) is None]
    for name, target in zip((name for name in names if _checkpoint(name) is None), targets, strict=True):
        if isinstance(target, RunDir):
            the_only_run(name, target, folder)
        elif keep is not None:
            raise UserError(
                f"{name} is a sweep; --keep and --keep-last are for checkpoints of runs", code="option_without_effect"
            )
    if single and keep is not None:
        raise UserError(
            f"{single[0]} is a single checkpoint; --keep and --keep-last choose among those of a run",
            code="option_without_effect",
        )
    found = [each for path in single for each in checkpoints(RunDir(path.parent.parent), folder, path)]
    if keep is not None:
        runs = [target for target in targets if isinstance(target, RunDir)]
        return [each for run in runs for each in checkpoints(run, folder, keep)]
    return [*found, *runs_and_sweeps(targets, folder)]


def _checkpoint(name: str) -> Path | None:
    """The folder of a checkpoint of a run, where a name is one."""
    path = Path(name).absolute()
    is_one = iteration_of(path) is not None and path.parent.name == "checkpoints" and path.is_dir()
    return path if is_one else None


def _counted(doomed: Sequence[Doomed]) -> str:
    """`1 run`, `2 runs, 1 sweep`."""
    kinds = [("checkpoint" if each.is_checkpoint else "sweep" if each.run is None else "run") for each in doomed]
    numbers = [(kinds.count(kind), kind) for kind in ("run", "sweep", "checkpoint")]
    return ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for number, kind in numbers if number)


def _put_back(names: Sequence[str], folder: Path, *, as_json: bool) -> None:
    entries = {entry.path: entry for name in names for entry in deleted_as(name, folder)}
    back = undo(list(entries.values()), folder)
    if as_json:
        print_json({"restored": [str(path) for path in back]})
    else:
        for path in back:
            typer.echo(f"{path} is back")
