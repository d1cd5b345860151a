"""`python -m orchestrator.sweeps.search SWEEP_DIR`: search as the sweep's ledger says; see __init__.py."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Before submitit is imported: the signal that stops a cell, which is also the one our programs know.
os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")

from orchestrator.cluster_profiles import load_profile
from orchestrator.errors import OrchestratorError, UserError
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.planning.forecast import forecast
from orchestrator.planning.warnings import too_large
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.sweeps.cells import Check
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.loading import load_sweep
from orchestrator.sweeps.search.program import search
from orchestrator.sweeps.search.training import ExecutorTrainer, LocalTrainer


def main() -> int:
    """Search to the end; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.sweeps.search", description=__doc__)
    parser.add_argument("sweep_dir", type=Path)
    parser.add_argument("--module", default=RUNTIME_MODULE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        _search(SweepDir(arguments.sweep_dir), arguments.module)
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _search(sweep: SweepDir, module: str) -> None:
    """Search as the newest plan of a sweep says, in the folder of the command that planned it."""
    history = sweep.search()
    if history is None:
        raise UserError(f"{sweep.path} has no search", code="no_search")
    planned = history.planned
    os.chdir(planned.folder or ".")
    cluster = load_profile(planned.cluster) if planned.cluster is not None else None
    drawing = None
    if history.rules.strategy == "bayesian":
        from orchestrator.sweeps.search.drawing import Drawing  # imports Optuna, which other searches do without

        files = [Path(file) for file in planned.files or ()]
        drawing = Drawing(sweep, load_sweep(files, planned.overrides or (), refusals(cluster)))
    if planned.local:
        search(sweep, LocalTrainer(sweep, module, planned.parallel), drawing)
    else:
        search(sweep, ExecutorTrainer(sweep, module, cluster), drawing)


def refusals(cluster: ClusterSpec | None) -> Check:
    """Says why a trial that was drawn cannot run on a cluster."""
    if cluster is None:
        return lambda plan: ()
    return lambda plan: [*what_is_refused(plan.job, cluster), *too_large(forecast(plan, cluster), cluster)]


if __name__ == "__main__":
    sys.exit(main())
