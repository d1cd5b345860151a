"""`python -m orchestrator.executors.slurm.array_program < REQUEST`: hand the cells of a sweep to SLURM as arrays, with
submitit; see orchestrator/sweeps/request.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

# Before submitit is imported: the signal that SLURM's notice comes by, which is also the one our programs know.
os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from orchestrator.errors import OrchestratorError
from orchestrator.executors.slurm.commands import Answer, unreachable
from orchestrator.executors.slurm.refusals import refusal
from orchestrator.run_directory.events.ledger import CellsSubmitted
from orchestrator.run_directory.events.types import Submitted
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.executor import CellTask
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.request import Request


def main() -> int:
    """Do what the request on standard input asks; returns the exit code."""
    request = Request.from_json(sys.stdin.read())
    try:
        submit_arrays(request, say)
    except OrchestratorError as error:
        say({"error": type(error).__name__, "message": str(error), "code": error.code})
        return error.exit_code
    return 0


def say(record: dict[str, object]) -> None:
    """One line of the answer."""
    print(json.dumps(record), flush=True)


class _Executor(SlurmExecutor):
    """submitit's, usable for a dry run on a machine without SLURM."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def script(self, tasks: int) -> str:
        """The batch script that submitting so many tasks writes."""
        parameters = self.parameters
        try:
            if tasks > 1:
                self.parameters = {**parameters, "map_count": tasks}
            return str(self._make_submission_file_text(self._submitit_command_str, "dry-run"))
        finally:
            self.parameters = parameters


def submit_arrays(request: Request, say: Callable[[dict[str, object]], None]) -> None:
    """Submit one array for each kind of cell; says the script of each, and the job id once it has one.

    Raises UserError when SLURM refuses what is asked for, SchedulerError when it cannot be asked. What was submitted
    before is written down by then.
    """
    sweep = SweepDir(Path(request.sweep_dir))
    for array in request.arrays:
        # The task becomes the batch shell itself, so that `--signal=B:` reaches it and nobody else.
        executor = _Executor(
            sweep.submitit, max_num_timeout=request.max_requeues + 1, python=f"exec {request.python} -P"
        )
        parallel = request.max_parallel or len(array.tasks)
        executor.update_parameters(**array.parameters, use_srun=False, wckey=None, array_parallelism=parallel)
        if request.dry_run:
            say({"script": executor.script(len(array.tasks)), "tasks": len(array.tasks)})
            continue
        sweep.submitit.mkdir(parents=True, exist_ok=True)
        try:
            jobs = executor.submit_array([CellTask(request.sweep_dir, task) for task in array.tasks])
        except (FailedJobError, FailedSubmissionError) as error:
            raise _scheduler_error(error, sweep) from error
        ids = {task.cell: str(job.job_id) for task, job in zip(array.tasks, jobs, strict=True)}
        for task in array.tasks:  # first: what its run knows of is not submitted again
            RunDir(Path(task.run_dir)).append(Submitted(job_id=ids[task.cell], cluster=request.cluster))
        sweep.append(CellsSubmitted(how="slurm", cluster=request.cluster, max_parallel=request.max_parallel, jobs=ids))
        say({"job_id": next(iter(ids.values())).partition("_")[0], "tasks": len(ids)})


def _scheduler_error(error: Exception, sweep: SweepDir) -> OrchestratorError:
    answer = Answer("sbatch", 1, "", str(error))
    script = max(sweep.submitit.glob(".submission_file_*.sh"), key=lambda path: path.stat().st_mtime, default=Path())
    return unreachable(answer) or refusal(answer, script, [])


if __name__ == "__main__":
    sys.exit(main())
