"""SLURM behind the protocol of executors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.executors.slurm import client
from orchestrator.executors.slurm.arrays import cluster_request, submit
from orchestrator.executors.slurm.batch_script import render_sbatch, sbatch_options
from orchestrator.executors.slurm.preparation import data_options, render_preparation
from orchestrator.executors.slurm.submission import profile, submit_run
from orchestrator.launch.executor_protocol import JobState, Scripts, Start, SubmittedIds, Warn
from orchestrator.sweeps.submission import SweepStart

ID_OF_THE_DATA_JOB = "DATA_JOB"
"""Stands in a script that is not submitted for what is known after the submission only."""
_QUIET = ("--job-name", "--output", "--open-mode", "--ntasks", "--dependency=singleton")
"""Options that a person does not need to see."""


class SlurmExecutor:
    """Runs as jobs of a SLURM cluster; a profile says how it is used."""

    name = "slurm"
    has_clusters = True

    def check(self) -> None:
        client.check_answers()

    def describe(self, start: Start) -> str:
        asked = [sbatch_options(start.job, profile(start), start.run, start.after)]
        if start.missing:
            asked.insert(0, data_options(start.job, profile(start), start.run, start.missing))
        return "\n".join(f"asking {start.where} for: {' '.join(_shown(options))}" for options in asked)

    def render(self, start: Start) -> Scripts:
        job, cluster, place = start.job, profile(start), start.place
        after = (*start.after, *([ID_OF_THE_DATA_JOB] if start.missing else []))
        script = render_sbatch(job, cluster, place, from_scratch=start.from_scratch, after=after, module=start.module)
        return Scripts(script, render_preparation(job, cluster, place, start.missing) if start.missing else None)

    def submit(self, start: Start, warn: Warn) -> SubmittedIds:
        return submit_run(start, warn)

    def submit_cells(self, asked: SweepStart) -> list[dict[str, Any]]:
        return submit(cluster_request(asked))

    def states(self, job_ids: Iterable[str], warn: Warn) -> dict[str, JobState]:
        return client.job_states(job_ids, warn)

    def cancel(self, job_ids: Iterable[str]) -> None:
        client.cancel(job_ids)


def _shown(options: Sequence[str]) -> list[str]:
    return [option for option in options if not option.startswith(_QUIET)]
