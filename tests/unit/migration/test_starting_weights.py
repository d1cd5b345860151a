"""Which weights a migrated job begins with, and which schedule it goes on by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.overrides import override
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text

Flags = Callable[..., Any]
PRETRAINED = "checkpoint.pretrained"
OVERRIDE, FROM_CHECKPOINT = "--override-opt_param-scheduler", "--use-checkpoint-opt_param-scheduler"


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--finetune --load X --save Y", "--load"),
        ("--load X --finetune", "--load"),
        ("--finetune --load X --save X", "--load"),
        ("--load X --save Y --no-load-optim --no-load-rng", "--load"),
        ("--pretrained-checkpoint X --load Y --save Y", "--pretrained-checkpoint"),
        ("--pretrained-checkpoint X", "--pretrained-checkpoint"),
        ("--load X --save Y", "--load"),
        ("--load X", "--load"),
        ("--load $X --save Y --no-load-rng", "--load"),
        ("--load X --save Y --pretrained-checkpoint Z", "--load"),
    ],
)
def test_a_script_that_begins_with_weights_is_no_job_that_begins_at_random(flags: Flags, words: str, flag: str) -> None:
    migrated = flags(*words.split())
    assert PRETRAINED in migrated.migration.missing
    assert migrated.outcome(flag) == "not_known"
    assert '  pretrained: "???"  # write it: ' in migrated.text
    override(migrated.migration, f"{PRETRAINED}=theirs")
    assert migrated.migration.missing == {}
    assert migrated.migration.values[PRETRAINED] == "theirs"


@pytest.mark.parametrize(
    ("words", "flag", "outcome"),
    [
        ("--finetune", "--finetune", "no_effect"),
        ("--load X --save X", "--load", "no_effect"),
        ("--load X --save X --no-load-optim", "--no-load-optim", "not_supported"),
        ("--no-load-rng", "--no-load-rng", "no_effect"),
    ],
)
def test_a_script_that_goes_on_or_begins_anew(flags: Flags, words: str, flag: str, outcome: str) -> None:
    migrated = flags(*words.split())
    assert migrated.outcome(flag) == outcome
    assert PRETRAINED not in migrated.migration.missing


def test_a_script_that_goes_on_from_another_folder(flags: Flags) -> None:
    """Nothing is in its place until a person chooses: to go on, with the job as it is, or to begin with the weights."""
    migrated = flags("--load", "X", "--save", "Y", "--no-load-rng")
    assert migrated.outcome("--no-load-rng") == "no_effect"
    with pytest.raises(SpecError):
        assert migrated.job
    override(migrated.migration, f"{PRETRAINED}=null")
    assert migrated.migration.missing == {}
    assert load_text(job_text(migrated.migration)).job.checkpoint.pretrained is None


def test_of_a_task_too(script_text: Callable[[str], str]) -> None:
    """The fine-tuning program begins with the weights of a pretraining."""
    text = script_text("race.sh").replace("--epochs 3", "--epochs 3 --pretrained-checkpoint checkpoints/bert_345m")
    assert PRETRAINED in migrate_script(text, "race.sh").missing


@pytest.mark.parametrize(
    ("words", "override_outcome", "checkpoint_outcome"),
    [
        ("", "no_effect", "no_effect"),
        ("--load X --save X", "no_effect", "no_effect"),
        ("--load X --save Y", "no_effect", "changes_training"),
        ("--load X --finetune", "no_effect", "no_effect"),
    ],
)
def test_the_schedule_is_the_jobs(flags: Flags, words: str, override_outcome: str, checkpoint_outcome: str) -> None:
    """A checkpoint's goes over the flags only where the script asks for it and loads one that is not its own."""
    migrated = flags(*words.split(), OVERRIDE)
    assert migrated.outcome(OVERRIDE.replace("_", "-")) == override_outcome
    migrated = flags(*words.split(), FROM_CHECKPOINT)
    assert migrated.outcome(FROM_CHECKPOINT.replace("_", "-")) == checkpoint_outcome
    assert flags("--use-checkpoint-lr-scheduler").outcome("--use-checkpoint-lr-scheduler") == "no_effect"


def test_weights_to_begin_with_are_no_flag(flags: Flags) -> None:
    job = flags().job
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"pretrained": "theirs"})})
    command = to_megatron(job)
    assert PRETRAINED in {each.path for each in command.unsaid}
    assert "--finetune" not in command.words


def test_the_optimizer_of_a_rendered_script_can_be_imported(flags: Flags) -> None:
    """Without the flag a distributed optimizer is bound to the ranks that wrote it; another one has no use for it."""
    saves = ("--save", "X", "--save-interval", "10")
    flag = "--dist-ckpt-optim-fully-reshardable"
    assert flag not in to_megatron(flags(*saves).job).words
    words = to_megatron(flags(*saves, "--use-distributed-optimizer").job).words
    assert flag in words
    assert flags(flag).outcome(flag) == "no_effect"
