"""What there is to tell of a run: read from its directory, so that whoever tells needs to know nothing else."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.launch.run_names import shown_name
from orchestrator.launch.states.run_states import last_iteration, last_metrics
from orchestrator.launch.states.state_words import state_after, written_end
from orchestrator.quantities import spec_duration
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.checkpoints.newest import begins_anew
from orchestrator.run_directory.events.types import DataFailed, Exited, Launched, RequeueFailed, Withdrawn
from orchestrator.run_directory.exits.causes import Exit, by_word_of_the_ranks, cause_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.notifications import Occasion
from orchestrator.tracking.mlflow.limits import truncated
from orchestrator.tracking.redaction import Redactor

_LONGEST_CONTENT = 1900
"""Discord takes 2000 characters."""
_MOST_EVIDENCE = 5
_LONGEST_LINE = 1000
"""Of what a program printed: all of it goes into a variable of a command too, and a system takes only so much."""


@dataclass(frozen=True)
class Notice:
    """One thing to tell, of a run or of a sweep. `text` is for people, `facts` for programs."""

    occasion: Occasion
    text: str
    facts: Mapping[str, Any]
    subject: Literal["run", "sweep"] = "run"

    def body(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """As JSON: the keys by which chats know a text, the facts below `run` or `sweep`, and what the user adds."""
        content = self.text if len(self.text) <= _LONGEST_CONTENT else self.text[: _LONGEST_CONTENT - 1] + "…"
        texts = {"text": self.text, "content": content, "message": self.text}
        return {**texts, "occasion": self.occasion, self.subject: dict(self.facts), **more}

    def environment(self) -> dict[str, str]:
        """The facts as variables: ORCHESTRATOR_RUN_ID, …; empty where unknown, a list as lines."""
        # By a variable for the launch id the processes of a launch are found, and ended.
        values = {name: value for name, value in self.facts.items() if name != "launch_id"}
        lines = {name: "\n".join(map(str, value)) for name, value in values.items() if isinstance(value, list)}
        named: dict[str, Any] = {**values, **lines, "occasion": self.occasion, "text": self.text}
        texts = {name: "" if value is None else str(value).replace("\0", "") for name, value in named.items()}
        return {f"ORCHESTRATOR_{name.upper()}": text for name, text in texts.items()}


def notice_of(run: RunDir, job: JobSpec, launch_id: str, occasion: Occasion) -> Notice:
    """Everything that is known of a start by now. Without an `exited` event its ranks' word counts, or it was lost;
    without a launch id it never came to a start, for want of data or because it was taken out of a queue. No value that
    the spec refers to is in it.
    """
    everything = run.events()
    events = everything.of_launch(launch_id)
    launched, exited = events.first(Launched), events.last(Exited)
    withdrawn = everything.withdrawal if occasion == "stopped" else None
    end = None if occasion == "started" else _end(run, launch_id, exited)
    if withdrawn is not None:  # what is told of is the wait for the next start, and not the start before
        launched, exited, end = None, None, Exit.of("cancelled", _withdrawal(withdrawn), None)
    refused = events.first(RequeueFailed)
    checkpoints = committed(run)
    iteration = last_metrics(run).iteration
    if occasion == "started":
        # What was measured after that was lost with the launch before.
        iteration = checkpoints[-1].iteration if checkpoints else None
    elif end is not None and end.iteration is not None:
        iteration = end.iteration
    redact = Redactor.of_spec(job.model_dump(mode="json"))
    message = _message(end, refused)
    named = shlex.quote(str(run.path))  # whoever is told may be in any folder
    began, ended = launched.time if launched else None, exited.time if exited else None  # none for a wait
    job_id = of_job.job_id if (of_job := withdrawn or launched) else None
    facts = {
        "run_id": run.run_id,
        "name": run.name,
        "shown_name": shown_name(run),
        "state": _state(occasion, end, job_id),
        "cause": end.cause if end else None,
        "message": message and truncated(redact(message), _LONGEST_LINE),
        "advice": cause_of(end.cause).advise(named, anew=begins_anew(run, everything)) if end else None,
        "iteration": iteration,
        "train_iters": last_iteration(job, checkpoints),
        "run_dir": str(run.path),
        "checkpoint": str(checkpoints[-1].path) if checkpoints else None,
        "checkpoint_iteration": checkpoints[-1].iteration if checkpoints else None,
        "seconds": round(ended - began, 3) if began and ended else None,
        "host": (launched.host if launched else None) or socket.gethostname(),
        "job_id": job_id,
        "launch_id": launch_id,
        "evidence": [truncated(redact(line), _LONGEST_LINE) for line in end.evidence[:_MOST_EVIDENCE]] if end else [],
    }
    return Notice(occasion, _text(occasion, facts), facts)


def _withdrawal(withdrawn: Withdrawn) -> str:
    never = "taken out of the queue" if withdrawn.launch_id is None else "kept from its next start"
    return f"{never} by {withdrawn.by}"


def _end(run: RunDir, launch_id: str, exited: Exited | None) -> Exit:
    if exited is not None:
        return written_end(exited)
    if not launch_id:
        failed = run.events().last(DataFailed)
        return Exit.of("data", (failed.message or "") if failed else "", None)
    lost = Exit.of("lost", "", None)
    word = by_word_of_the_ranks(run, launch_id)
    if word is None or word.cause != "stopped":
        return word or lost
    return Exit.of("killed", "its launcher was killed; the ranks saved and stopped", word.iteration)


def _state(occasion: Occasion, end: Exit | None, job_id: str | None) -> str:
    if occasion == "requeued":
        return "queued" if job_id is not None else "running"
    if occasion == "started":
        return "running"
    return state_after(end.cause) if end is not None and occasion != "failed" else occasion


def _message(end: Exit | None, refused: RequeueFailed | None) -> str | None:
    if end is None:
        return None
    said = end.message or cause_of(end.cause).sentence
    return f"{said}; the job could not be requeued: {refused.message}" if refused else said


def _text(occasion: Occasion, facts: Mapping[str, Any]) -> str:
    is_cancelled = facts["state"] == "cancelled"
    again = "went back into the queue" if facts["job_id"] is not None else "is started again"
    words = {"requeued": again, **({"stopped": "was cancelled"} if is_cancelled else {})}
    first = f"{facts['shown_name']}/{facts['run_id']} {words.get(occasion, occasion)}"
    if facts["iteration"] is not None:
        first += f" at iteration {facts['iteration']} of {facts['train_iters']}"
    told = first.partition(" ")[2]
    if facts["seconds"] is not None:
        first += f" after {spec_duration(int(facts['seconds']))}"
    if occasion in ("failed", "requeued", "stopped") and facts["message"] != told:
        first += f": {facts['message']}" if is_cancelled else f": {facts['cause']}: {facts['message']}"
    lines = [first, *(line for line in facts["evidence"] if line != facts["message"])]
    if facts["checkpoint_iteration"] is not None and occasion != "completed":
        lines.append(f"latest checkpoint: iteration {facts['checkpoint_iteration']}")
    return "\n".join([*lines, f"{facts['host']}:{Path(facts['run_dir'])}"])
