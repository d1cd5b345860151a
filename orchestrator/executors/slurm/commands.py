"""Running SLURM's commands: with a time-out each, and what went wrong in one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import OrchestratorError, SchedulerError, UserError
from orchestrator.fields.formatting import shorten

QUERY_SECONDS = 60.0
"""Time-out of a question. A controller that answers at all does so within its own MessageTimeout, 10 s by default."""
SUBMIT_SECONDS = 120.0
"""Time-out of sbatch: it waits and tries again by itself while the controller is busy."""

_KEPT = re.compile(r"SLURM_(CONF|CONF_SERVER|CLUSTERS|JWT)|(?!SLURM_|SQUEUE_|SACCT_|SINFO_|SCONTROL_|SCANCEL_)")
"""The environment that SLURM's commands get: not that of a job they happen to be called from, which sbatch would hand
on, nor a person's own output formats."""

_NO_MUNGE = (
    "SLURM refuses to talk to this machine ({words}): its munge service is down or has another key than the "
    "cluster's. Tell its administrators"
)
_UNREACHABLE = (
    (r"Munge \w+ failed", _NO_MUNGE),
    (r"munge|authentication|auth_g_|credential", _NO_MUNGE),
    (
        r"configuration source|slurm\.conf|s_p_parse_file|resolve_ctls",
        "SLURM is not set up on this machine ({words}): go to a login node, or let SLURM_CONF name its slurm.conf",
    ),
    (
        r"slurmdbd|database|slurm_persist_conn|accounting_storage",
        "SLURM's accounting does not answer ({words}): try again later",
    ),
    (
        r"Unable to contact|Connection (refused|timed out|reset)|connect failure|Socket timed out|Zero Bytes|"
        r"[Tt]ransport endpoint|No route to host|Network is unreachable|standby mode|[Ii]ncompatible versions|"
        r"temporarily unable|[Uu]nable to resolve|Unexpected message|Communication",
        "slurmctld, SLURM's controller, does not answer ({words}): try again later; `scontrol ping` shows when "
        "it is back",
    ),
)
_PREFIX = re.compile(r"^(?:[a-z]+: )?(?:(?:fatal|error|warning): )*(?:[a-z_]+ error: )?")


@dataclass(frozen=True)
class Answer:
    """What a command wrote, and its exit status."""

    command: str
    code: int
    out: str
    err: str


def run(command: Sequence[str], *, seconds: float = QUERY_SECONDS) -> Answer:
    """Run one of SLURM's commands to its end, whatever that is.

    Raises UserError where SLURM is not installed and SchedulerError when there is no answer in time.
    """
    program = shutil.which(command[0])
    if program is None:
        raise UserError(
            f"SLURM's commands are not on this machine (no {command[0]} in PATH): submit from a login node",
            code="missing_slurm",
        )
    environment = {name: value for name, value in os.environ.items() if _KEPT.match(name)}
    process = subprocess.Popen(
        [program, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "SLURM_TIME_FORMAT": "%s"},
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # sites wrap these commands in scripts: a time-out ends all of it
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SchedulerError(
            f"{command[0]} did not answer within {seconds:g} s: SLURM's controller is down or overloaded. "
            "Try again later; `scontrol ping` shows when it is back",
            code="scheduler_did_not_answer",
        ) from None
    finally:
        _end(process)
    return Answer(command[0], process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of it running, however it ended."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def unreachable(answer: Answer) -> SchedulerError | None:
    """The error when a command failed because it could not talk to the scheduler; None when it could."""
    lines = _lines(answer)
    for pattern, message in _UNREACHABLE:
        for line in lines:
            if re.search(pattern, line):
                return SchedulerError(message.format(words=_quoted(line)), code="unreachable_scheduler")
    return None


def failure(answer: Answer) -> OrchestratorError:
    """The error of a command that failed."""
    return unreachable(answer) or SchedulerError(
        f"{answer.command} failed: {words_of(answer)}", code="scheduler_command_failed"
    )


def words_of(answer: Answer) -> str:
    """What a command complained about, on one line."""
    lines = [_PREFIX.sub("", line) for line in _lines(answer)]
    return _quoted("; ".join(dict.fromkeys(lines))) or f"exit status {answer.code}, without a word"


def _lines(answer: Answer) -> list[str]:
    return [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip()]


def _quoted(line: str) -> str:
    return shorten(_PREFIX.sub("", line).rstrip("."), 300)
