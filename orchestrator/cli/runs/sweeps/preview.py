"""What a sweep would start: its cells and batch scripts, without anything being started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from orchestrator.cli.common import print_json
from orchestrator.cli.runs.sweeps.tables import describe_cells
from orchestrator.launch.code.snapshot import place_of
from orchestrator.launch.executor_protocol import Start, executor_of
from orchestrator.planning.hardware.planned_device import device_of
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import CellRun
from orchestrator.sweeps.submission import CellStart, SweepStart, submit_cells


def show_dry_run(
    loaded: LoadedSweep,
    sweep: SweepDir,
    matched: Sequence[CellRun],
    profile: ClusterSpec | None,
    parallel: int | None,
    *,
    local: bool,
    as_json: bool,
) -> None:
    """Print the cells, and with a profile the text of each array and the batch script of the first cell."""
    there = [each for each in matched if each.deleted is None]
    starts = [CellStart(each.id, each.cell.name, each.job, each.place(sweep.runs_dir)) for each in there]
    arrays: list[dict[str, Any]] = []
    script = None
    if starts and (profile is not None or not (local or executor_of(starts[0].job).has_clusters)):
        arrays = submit_cells(SweepStart(sweep, starts, profile, parallel, dry_run=True))
        first = starts[0]
        script = (
            executor_of(first.job).render(Start(first.job, place_of(first.run, first.job, copy=False), profile)).run
        )
    if as_json:
        pruned = [{"name": cell.name, "reason": cell.reason} for cell in loaded.cells.pruned]
        cells = [_record(start) for start in starts]
        print_json({"sweep": sweep.name, "cells": cells, "pruned": pruned, "arrays": arrays, "script": script})
        return
    for array in arrays:
        typer.echo(array["script"])
    if script is not None:
        typer.echo(f"# What the task of the first cell, {starts[0].name}, runs:\n")
        typer.echo(script)
        if len(starts) > 1:
            typer.echo("# The scripts of the other cells differ in their run directory and in what this table shows:\n")
    typer.echo(describe_cells(loaded, every=True))
    if any(device_of(start.job, profile).is_assumed for start in starts):
        typer.echo(
            "the GPUs of these cells are not known, so none is left out for its memory: write launch.gpu, or "
            "gpu in the cluster's profile"
        )
    if not arrays and not local:
        typer.echo(
            "without a cluster profile no script can be shown: name one with --cluster; `orchestrator cluster init` "
            "creates one; --local runs the cells on this machine"
        )
    elif local:
        at_once = "one after the other" if parallel in (None, 1) else f"at most {parallel} at once"
        typer.echo(f"the cells run on this machine, {at_once}")


def _record(start: CellStart) -> dict[str, Any]:
    return {
        "cell": start.id,
        "name": start.name,
        "path": str(start.run.path),
        "exists": start.run.path.exists(),
        "data_parallel_size": start.job.data_parallel_size,
        "global_batch_size": start.job.global_batch_size,
    }
