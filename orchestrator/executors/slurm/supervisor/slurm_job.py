"""What SLURM tells a job about itself, from the environment."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import UserError
from orchestrator.fields.nodelist import expand_nodelist

SUPERVISOR_VARIABLE = "ORCHESTRATOR_SUPERVISOR"
"""Which process the batch script is, for the nodes' programs."""
_FIRST_PORT, _PORTS = 15000, 17000  # below the range that Linux hands out by itself


@dataclass(frozen=True)
class SlurmJob:
    """One incarnation of a SLURM job: `restarts` counts how often SLURM has started it again."""

    job_id: str
    restarts: int
    cluster: str
    nodes: tuple[str, ...]
    started: float
    """Seconds since the epoch."""
    ends: float | None
    """When SLURM will end it, seconds since the epoch; None where this version does not say."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ, time_limit: float | None = None) -> SlurmJob:
        """The job this process runs in; `time_limit` in seconds, for versions that do not tell when it ends.

        Raises UserError outside a job.
        """
        job_id = environment.get("SLURM_JOB_ID")
        if job_id is None:
            raise UserError(
                "this program runs inside a SLURM job: start it with `orchestrator submit`", code="not_in_a_slurm_job"
            )
        array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        if array is not None and task is not None:
            job_id = f"{array}_{task}"  # what the scheduler calls it everywhere else
        started = float(environment.get("SLURM_JOB_START_TIME") or time.time())
        end_time = environment.get("SLURM_JOB_END_TIME")
        limit_ends = None if time_limit is None else started + time_limit
        return cls(
            job_id=job_id,
            restarts=int(environment.get("SLURM_RESTART_COUNT") or 0),
            cluster=environment.get("SLURM_CLUSTER_NAME") or "slurm",
            nodes=tuple(expand_nodelist(environment.get("SLURM_JOB_NODELIST", ""))),
            started=started,
            ends=float(end_time) if end_time else limit_ends,
        )

    def seconds_left(self, now: float) -> float | None:
        """Time until SLURM ends it; None where nobody knows."""
        return None if self.ends is None else self.ends - now

    @property
    def launch_id(self) -> str:
        """Names this incarnation for good; a later one of the same job supersedes it (see run_directory/lease.py)."""
        return f"{self.cluster}-{self.job_id}.{self.restarts}"

    @property
    def port(self) -> int:
        """Where the first node's rendezvous listens: another one for each job and restart."""
        digits = "".join(filter(str.isdigit, self.job_id))
        return _FIRST_PORT + (int(digits or 0) * 16 + self.restarts % 16) % _PORTS
