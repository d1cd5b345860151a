"""Why a run ended: one table of causes, each with a sentence, what to do, and the exit code of the command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """`sentence` says what happened, `advice` the way out ({run} is filled in), `exit_code` what a command returns.

    Of several ranks' causes the one with the lowest `rank_order` explains the exit: one rank's trouble makes the others
    fail in ways that say nothing.
    """

    sentence: str
    advice: str
    exit_code: int
    rank_order: int


CAUSES = {
    "completed": Cause("finished", "", 0, 100),
    "stopped": Cause("stopped as asked, after saving", "continue with: orchestrator resume {run}", 1, 90),
    "held": Cause("another process holds the run", "see: orchestrator status {run}", 2, 0),
    "lease_lost": Cause("a newer start of this run took over", "see: orchestrator status {run}", 1, 1),
    "user_error": Cause("the input is wrong", "", 2, 2),
    "nan": Cause(
        "the loss or gradient stayed NaN or infinite",
        "lower optimizer.lr, lengthen the warm-up or look at the data, then: orchestrator resume {run} --set …",
        1,
        3,
    ),
    "hang": Cause(
        "a step made no progress within runtime.hang_timeout",
        "every rank's stacks are in the run's stacks/ folder; continue with: orchestrator resume {run}",
        1,
        4,
    ),
    "out_of_memory": Cause(
        "a process ran out of memory",
        "lower batch.micro_batch_size, set runtime.recompute_granularity or raise the parallel sizes, "
        "then: orchestrator resume {run} --set …",
        1,
        5,
    ),
    "checkpoint": Cause(
        "a checkpoint could not be written or read", "look at: orchestrator checkpoint list {run}", 1, 6
    ),
    "disk_full": Cause(
        "there was no space left on a disk",
        "make room (older checkpoints: checkpoint.keep_last), then: orchestrator resume {run}",
        1,
        6,
    ),
    "killed": Cause("a process was killed", "continue with: orchestrator resume {run}", 1, 7),
    "error": Cause("the training program failed", "the whole story: orchestrator logs {run}", 1, 8),
    "lost": Cause(
        "the launcher and its processes vanished without a word (machine gone, or everything was killed)",
        "continue with: orchestrator resume {run}",
        1,
        9,
    ),
}


def cause_of(name: str) -> Cause:
    """The table's row; an unknown cause, from another version, counts as an error."""
    return CAUSES.get(name, CAUSES["error"])
