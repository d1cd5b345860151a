"""The jobs of the kept runs, and how these go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from support.commands import Commands
from support.faults import QUICK_TORCHRUN, Ranks
from support.mamba_stub import INSTALL

from baseline.recording import measured
from orchestrator.launch.runs import all_runs
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved

_TABLE = Path(__file__).with_name("runs.yaml")
CONTINUED = ("gpt", "dp", "experts", "bert", "t5", "hybrid", "vision", "lora", "interrupted", "reshaped")
"""The others have no steps left, or were never started."""


def keys_of(name: str) -> dict[str, Any]:
    """The keys of a kept run's job, with dots."""
    table = yaml.safe_load(_TABLE.read_text())
    return {**table["base"], **table["runs"][name]}


def stub(folder: Path) -> Path:
    """A file of what ranks of a hybrid execute first."""
    path = folder / "stub.py"
    path.write_text(INSTALL)
    return path


def only_run(folder: Path) -> RunDir:
    """The run in a folder that one was unpacked into."""
    [run] = all_runs(folder / "runs")
    return run


def goes_on(name: str, run: RunDir, commands: Commands, ranks: Ranks, folder: Path) -> dict[str, dict[str, float]]:
    """Continue a kept run in a folder; what it measured from then on."""
    done = committed(run)[-1].iteration
    if name == "hybrid":  # which `resume` refuses, as mamba-ssm is not there
        job = load_resolved(run.resolved())
        schedule = job.schedule.model_copy(update={"train_iters": done + 2})
        job = job.model_copy(update={"schedule": schedule})
        run.next_resolved().write_text(job.model_dump_json())
        ranks.must_train(run, job, inject=stub(folder))
    else:
        longer = [] if name == "interrupted" else ["--set", f"schedule.train_iters={done + 2}", "--allow-changes"]
        env = {**os.environ, **ranks.for_commands(QUICK_TORCHRUN)}
        said = commands("resume", run.path, *longer, cwd=folder, env=env)
        assert said.code == 0, said.out + said.err
    return measured(run, after=done)
