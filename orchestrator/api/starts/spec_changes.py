"""A run that goes on with another spec: the changes in words, and what they do to its length and its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os.path import abspath

from orchestrator.api.starts.reporter import Reporter
from orchestrator.api.starts.run_sentences import length_key
from orchestrator.data.samples.moved_sources import at_new_places
from orchestrator.data.samples.position import position_of, seen_again
from orchestrator.errors import UserError
from orchestrator.planning.blend import blend_report
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.progress import stored_progress
from orchestrator.run_directory.checkpoints.commit_markers import Commit, verify
from orchestrator.run_directory.checkpoints.newest import latest_valid
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.schema.diff import Change
from orchestrator.tracking.measurements.inputs import read_inputs

_ORDER = ("forbidden", "trajectory", "safe")
_WORDS = {
    "forbidden": "forbidden: this run cannot continue with it",
    "trajectory": "changes the trajectory: the losses will differ from those of an unchanged run",
    "safe": "safe",
}


def describe_changes(changes: list[Change]) -> str:
    """The difference, worst first."""
    lines = []
    for kind in _ORDER:
        of_kind = [change for change in changes if change.kind == kind]
        if of_kind:
            lines.append(_WORDS[kind])
        for change in of_kind:
            lines.append(
                f"  {change.path}: {change.old} -> {change.new}" + (f"   ({change.reason})" if change.reason else "")
            )
    return "\n".join(lines)


def refuse(changes: list[Change], allow_changes: bool, another: Callable[[], str]) -> None:
    """Raises UserError when some change is forbidden, or alters the trajectory and was not allowed. `another` gives the
    command that starts another run with them, for which a scheduler may have to be asked.
    """
    forbidden = [f"{change.path}: {change.reason}" for change in changes if change.kind == "forbidden"]
    if forbidden:
        raise UserError(
            "this run cannot be continued with that spec:\n      "
            + "\n      ".join(forbidden)
            + f"\n      To train it as another run, from the start: {another()}",
            code="spec_change_forbidden",
        )
    altering = [change.path for change in changes if change.kind == "trajectory"]
    if not allow_changes:
        refuse_unconfirmed("nothing was started", altering)


def refuse_unconfirmed(result: str, altering: Sequence[str]) -> None:
    """Raises UserError where some of a job alters the course of its training, of which nobody has said that it may."""
    if altering:
        raise UserError(
            f"{result}: {', '.join(altering)} would change the course of the training.\n"
            "      If that is what you want, add --allow-changes.",
            code="spec_change_unconfirmed",
        )


def check_length(run: RunDir, job: JobSpec, reporter: Reporter) -> None:
    """Say where the training ends, when batches or sequences of another size move that. Raises UserError when it has
    consumed all that the spec gives it, unless it is to end exactly where it stands.
    """
    newest = _newest(run)
    if newest is None:
        return
    known = stored_progress(run, newest, run.events())
    done, by_itself, schedule = known.progress, BatchSchedule.of(job), BatchSchedule.of(job, known.progress)
    whole = f"{by_itself.train_iters:,} steps with this spec are {by_itself.train_samples:,} samples in total"
    so_far, unit = f"{done.samples:,} are done at iteration {done.iteration}", "samples"
    if job.schedule.train_tokens is not None:
        whole = f"schedule.train_tokens is {job.schedule.train_tokens:,}"
        so_far, unit = f"{done.tokens:,} tokens are done at iteration {done.iteration}", "tokens"
    if schedule.train_iters == done.iteration != by_itself.train_iters:
        step = job.global_batch_size * (job.tokens_per_sample if unit == "tokens" else 1)
        raise UserError(
            f"nothing was started: {whole}, and {so_far}.\n"
            f"      To continue from there, write a longer schedule.{length_key(job)}; each 100 additional steps are "
            f"{100 * step:,} {unit}.",
            code="run_completed",
        )
    if schedule.train_iters != by_itself.train_iters:
        reporter.say(f"it ends at iteration {schedule.train_iters}: {whole}, and {so_far}")


def samples_again(run: RunDir, job: JobSpec) -> str | None:
    """How many samples of a changed job repeat text that the run has read in this epoch, cut into other samples; None
    where nothing is cut anew.
    """
    newest = _newest(run)
    if newest is None:
        return None
    known = stored_progress(run, newest, run.events())
    consumed, schedule = known.progress.samples, BatchSchedule.of(job, known.progress)
    before = at_new_places(known.position, job, read_inputs(run))
    position = position_of(job, before, consumed, schedule.drawn_samples)
    if position is None or position == before:
        return None
    held = {abspath(source.path): source.tokens_held for source in blend_report(job, schedule).train.sources}
    again = seen_again(position, schedule.train_samples, held)
    if again == 0:
        return None
    how_many = "an unknown number" if again is None else f"about {again:,}"
    to_come = schedule.train_samples - consumed
    return f"the data is cut into other samples: of the remaining {to_come:,}, {how_many} repeat text of this epoch"


def _newest(run: RunDir) -> Commit | None:
    """The checkpoint that the ranks will continue from, as far as file sizes show."""
    return latest_valid(run, findings_of=lambda path: verify(path, contents=False))
