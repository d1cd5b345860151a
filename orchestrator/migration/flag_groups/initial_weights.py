"""Which checkpoint a training begins with, and what it takes from there."""

from __future__ import annotations

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.blocks.experts.megatron_flags import UPCYCLING
from orchestrator.models.blocks.flags import FlagGroup

PRETRAINED = "checkpoint.pretrained"
_FRESH = ("finetune", "no-load-optim", "no-load-rng")
"""Flags that leave the optimizer or the random state of a checkpoint out."""
_OVERRIDE, _FROM_CHECKPOINT = "override-opt-param-scheduler", "use-checkpoint-opt-param-scheduler"
_IMPORT = "make a run of it, `orchestrator checkpoint import DIR --name NAME`, and write that name"
_GO_ON = (
    "the script continues from this checkpoint: to do the same, write null, and then `orchestrator checkpoint import "
    "DIR --job "
    "JOB.yaml` and `orchestrator resume`. To start over with its weights, make a run of them, `orchestrator checkpoint "
    "import DIR --name NAME`, and write that name"
)


def read_initial_weights(given: GivenFlags) -> None:
    is_own = given.has("load") and given.has("save") and given.flags["load"].words == given.flags["save"].words
    is_new = given.has(UPCYCLING) or given.has("finetune") or (given.has("no-load-optim") and not is_own)
    begins = given.has("load") and is_new
    goes_on = given.has("load") and not is_new and not is_own
    if begins:
        _begin_with(given, "load", _IMPORT)
    elif goes_on:
        _begin_with(given, "load", _GO_ON)
    elif is_own:
        given.no_effect("load", "a run continues from its last checkpoint automatically")
    if begins or goes_on:
        given.no_effect("pretrained-checkpoint", "Megatron-LM takes it where --load has no checkpoint")
    elif given.has("pretrained-checkpoint"):
        _begin_with(given, "pretrained-checkpoint", _IMPORT)
    _read_fresh(given, goes_on=goes_on)
    _read_scheduler(given, is_loaded=given.has("load") and not begins, is_own=is_own)


def _begin_with(given: GivenFlags, name: str, reason: str) -> None:
    given.settle(name, "not_known", PRETRAINED, reason=reason)
    given.require(PRETRAINED, f"{given.flags[name].shown} ({reason})")


def _read_fresh(given: GivenFlags, *, goes_on: bool) -> None:
    if goes_on:
        given.no_effect("no-load-rng", "an import ignores the random state")
    elif given.is_open(PRETRAINED):
        given.no_effect(_FRESH, f"{PRETRAINED} takes only the weights")
    elif not given.has("load"):
        given.no_effect(_FRESH, "nothing is loaded")
    for name in _FRESH:
        if given.has(name) and name not in given.settled:
            given.not_supported(name, "a run continues with its optimizer and its random state")


def _read_scheduler(given: GivenFlags, *, is_loaded: bool, is_own: bool) -> None:
    given.no_effect(_OVERRIDE, "the learning rate and its schedule are always the job's, and never a checkpoint's")
    if not is_loaded:
        given.no_effect(_FROM_CHECKPOINT, "no state of a schedule is loaded")
    elif is_own:
        given.no_effect(_FROM_CHECKPOINT, "a run continues with the schedule that it began with")
    elif given.has(_FROM_CHECKPOINT):
        reason = (
            "Megatron-LM takes the learning rate, its warm-up, its decay and its minimum from the checkpoint, and not "
            "from these flags: write the checkpoint's"
        )
        given.another_training(_FROM_CHECKPOINT, reason)


def write_initial_weights(writer: FlagWriter) -> None:
    reason = "`orchestrator checkpoint export` writes it for Megatron-LM: add --pretrained-checkpoint FOLDER"
    writer.leave(PRETRAINED, reason)


INITIAL_WEIGHTS = (
    FlagGroup(
        {
            **{"load": 1, "pretrained-checkpoint": 1},
            **dict.fromkeys((*_FRESH, _OVERRIDE, _FROM_CHECKPOINT), 0),
        },
        read_initial_weights,
        write_initial_weights,
        (PRETRAINED,),
    ),
)
