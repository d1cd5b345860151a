"""The events of a search in the ledger of its sweep: every decision on a trial, from which the search goes on after its
program was killed. A trial that was drawn is `ledger.TrialDrawn`: it makes the sweep longer.
"""

from __future__ import annotations

from orchestrator.run_directory.events.ledger import LedgerEvent
from orchestrator.run_directory.events.types import Count, Flag, Items, Number, Object, Text, Texts


class SearchPlanned(LedgerEvent, name="search_planned"):
    """How trials are chosen and compared from now on, and what its program is started with again. `shares`: of a whole
    training, at which trials are compared, the last one 1; `folder`: in which the command worked.
    """

    strategy: Text
    reduction: Count
    shares: Items
    metric: Text
    goal: Text
    trials: Count
    parallel: Count
    files: Texts
    overrides: Texts
    folder: Text
    cluster: Text
    local: Flag


class SearchStarted(LedgerEvent, name="search_started"):
    """Its program, as `Process` writes it down."""

    driver: Object


class SearchEnded(LedgerEvent, name="search_ended"):
    """Its program has nothing more to do. `problem`: what keeps the search from going on; `cancelled`: a person did."""

    problem: Text = None
    cancelled: Flag = None


class TrialStarted(LedgerEvent, name="trial_started"):
    """A cell is handed to its executor, to train up to an iteration. `devices`: its GPUs on this machine."""

    cell: Text
    rung: Count
    iteration: Count
    devices: Texts = None


class RungReached(LedgerEvent, name="rung_reached"):
    """A trial was measured at a rung. Without `value` it counts as the worst there, and `cause` says why."""

    cell: Text
    rung: Count
    iteration: Count
    value: Number = None
    cause: Text = None


class TrialStopped(LedgerEvent, name="trial_stopped"):
    """It is not trained on, because `rank` of the `of` trials that had reached this rung is not good enough."""

    cell: Text
    rung: Count
    iteration: Count
    value: Number
    rank: Count
    of: Count


class TrialPromoted(LedgerEvent, name="trial_promoted"):
    """It is trained on to the next rung, of those that had reached the one before as `rank` of `of`."""

    cell: Text
    rung: Count
    rank: Count
    of: Count


class TrialContinued(LedgerEvent, name="trial_continued"):
    """A person has it trained to the end of its schedule, whatever its rank."""

    cell: Text


class TrialRetried(LedgerEvent, name="trial_retried"):
    """A person has it tried again after it failed: that it failed does not count any more."""

    cell: Text


class TrialWithdrawn(LedgerEvent, name="trial_withdrawn"):
    """A person has stopped its run before its rung, or taken the run away: it is left alone until the search is started
    again.
    """

    cell: Text
