"""Flags of Megatron-LM's fine-tuning program, tasks/main.py. They are read; its scripts are not written."""

from __future__ import annotations

from typing import Final

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.migration.megatron_flags.programs import TASKS
from orchestrator.models.blocks.flags import FlagGroup

_FILES: Final = {"train-data": "task.train", "valid-data": "task.validation"}
_LENGTH: Final = "schedule.train_samples"
_OTHERS: Final = ("epochs", "keep-last")


def read_task(given: GivenFlags) -> None:
    name = given.text("task")
    if name not in TASKS:
        given.no_effect(("task", *_FILES, *_OTHERS), "it is for the program that fine-tunes, tasks/main.py")
        return
    given.carry("task", "task.name", name.lower())
    for flag, path in _FILES.items():
        if not given.has(flag):
            continue
        words = given.words(flag)
        if words and all(words):
            given.carry(flag, path, words)
        else:
            given.write_it(flag, path)
    if given.has("epochs"):
        given.write_it("epochs", _LENGTH, "this many times the number of examples in the files")
    given.no_effect("keep-last", "a last batch that is not full is filled from the next epoch")


def write_task(writer: FlagWriter) -> None:
    """A job with a task is refused before."""


TASK = (FlagGroup({"task": 1, **dict.fromkeys(_FILES), "epochs": 1, "keep-last": 0}, read_task, write_task, ("task",)),)
