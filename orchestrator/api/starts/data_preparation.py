"""Data sets that a job lacks: refused, or made from text before the training starts."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.data.source_survey import Source, survey_job
from orchestrator.errors import JobError, UserError
from orchestrator.launch.processes.child_commands import tied
from orchestrator.launch.processes.stop_request import Terminated
from orchestrator.planning.plan import Plan
from orchestrator.safe_path import module_command
from orchestrator.spec.job import JobSpec


def check_sources(plan: Plan) -> list[Source]:
    """The data sets that are made from text first. Raises UserError for what is neither there nor can be made."""
    refuse([f"{source.place}: {source.trouble}" for source in plan.data_sets if source.trouble is not None])
    return [source for source in plan.data_sets if source.is_to_be_made]


def check_data(plan: Plan) -> None:
    """Raises UserError for each data set that is not there."""
    way_out = "run this first: orchestrator data prepare JOB.yaml"
    refuse([f"{each.place}: {each.entry.path} does not exist yet; {way_out}" for each in check_sources(plan)])


def refuse(troubles: list[str]) -> None:
    """Raises UserError when there are any."""
    if troubles:
        raise UserError("\n       ".join(troubles), code="data_cannot_be_prepared")


class Preparation(NamedTuple):
    """What came of making data sets."""

    code: int = 0
    """The exit code of the program that made them."""
    said: str = ""
    """What it printed, where that was kept."""


def prepare_here(what: Sequence[str], job: JobSpec, *, as_json: bool) -> Preparation:
    """Make on this machine what a job lacks and can be made, showing how it comes along. `what` are the arguments of
    `orchestrator data prepare` that name the job. With `as_json` what it prints is kept, its error too.
    """
    if not any(source.is_to_be_made for source in survey_job(job)):
        return Preparation()
    options = ["--json"] if as_json else []
    command = module_command("orchestrator.data", "prepare", *options, *what, python=job.launch.python)
    process = subprocess.Popen(tied(*command), stdout=subprocess.PIPE if as_json else None, text=True)
    said = ""
    while True:
        try:
            said, _ = process.communicate()
        except Terminated:
            raise  # the tether ends the program with this one
        except KeyboardInterrupt:
            continue  # Ctrl-C reaches the program as well; it ends by itself and says what was kept
        break
    refuse_killed(process.returncode, "data prepare")
    return Preparation(process.returncode, said or "")


def refuse_killed(code: int, command: str) -> None:
    """Raises JobError where a data program was ended by a signal, of which it could say nothing itself."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = ", which is often a lack of memory" if -code == signal.SIGKILL else ""
        raise JobError(
            f"{command} was ended by {name}{why}. Finished shards are kept: run the same command again to continue, "
            "with fewer --workers if memory ran out",
            code="data_preparation_killed",
        )
