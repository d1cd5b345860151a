"""A value that a flag can have and a job cannot, or that nobody knows, is never silently another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from unit.migration.conftest import SMALLEST, recorded_choices

from orchestrator.migration.defaults import is_about_speed
from orchestrator.migration.flag_groups import FLAG_GROUPS
from orchestrator.migration.from_megatron import migrate_words
from orchestrator.migration.megatron_flags.table import ROWS
from orchestrator.migration.megatron_flags.unsupported_flags import HARMLESS_VALUES, unsupported_flag
from orchestrator.migration.report import LOUD, FlagOutcome, Migration

UNKNOWN = "no-such-value"
_GPT = "pretrain_gpt.py"
CONTEXTS = (
    f"{_GPT} --position-embedding-type rope --bf16 --fp8-format hybrid --first-last-layers-bf16 --lr-decay-style WSD "
    "--recompute-granularity full --group-query-attention --window-size 10,0 --save there --save-interval 10 "
    "--wandb-project ours --wandb-exp-name first --optimizer-cpu-offload",
    f"{_GPT} --num-experts 4 --moe-use-upcycling --fp16 --optimizer sgd --position-embedding-type rope "
    "--use-rope-scaling --finetune",
    "pretrain_bert.py --recompute-granularity selective --optimizer muon --bf16 --fp4-format e2m1",
    "pretrain_t5.py --position-embedding-type relative",
    "pretrain_mamba.py --mock-data",
    "main.py --task MNLI",
    f"{_GPT} --experimental-attention-variant gated_delta_net --linear-attention-freq 2",
    f"{_GPT} --multi-latent-attention --position-embedding-type rope --rotary-scaling-factor 4 --mtp-num-layers 1 "
    "--use-megatron-fsdp",
)
"""Programs and flags: between them each flag has an effect somewhere."""
SAME = {
    ("optimizer", "dist_muon"): "muon",
    ("data-parallel-sharding-strategy", "optim_grads_params"): "full",
    ("data-parallel-sharding-strategy", "optim_grads"): True,
    ("data-parallel-sharding-strategy", "optim"): True,
    ("attention-backend", "flash"): "auto",
    ("transformer-impl", "local"): "torch",
    ("tokenizer-type", "GPT2BPETokenizer"): "gpt2_bpe",
    ("tokenizer-type", "HuggingFaceTokenizer"): "huggingface",
    ("tokenizer-type", "SentencePieceTokenizer"): "sentencepiece",
    ("tokenizer-type", "GPTSentencePieceTokenizer"): "sentencepiece",
    ("tokenizer-type", "Llama2Tokenizer"): "sentencepiece",
    ("tokenizer-type", "BertWordPieceLowerCase"): "wordpiece",
    ("tokenizer-type", "BertWordPieceCase"): "wordpiece",
    ("tokenizer-type", "NullTokenizer"): "byte_level",
    ("tensorboard-dir", UNKNOWN): True,
    ("fp4-format", "e2m1"): {"recipe": "nvfp4"},
}
"""Values that have another name here."""
UNREPEATED = ("fp8-format", "hybrid")
"""It is the recipe's own, which the job does not repeat."""
TEXTS = frozenset(("save", "tokenizer-model", "wandb-save-dir", "task", "vocab-size"))
"""Flags with the name of something that is elsewhere here, or that another program or tokenizer reads."""
READ = {row.flag for row in ROWS if row.kind.values} | {
    name for group in FLAG_GROUPS for name, count in group.flags.items() if count != 0
}


def migrated(context: str, flag: str, value: str) -> tuple[Migration, FlagOutcome]:
    """A migration in a context, and what became of the flag."""
    program, *words = context.split()
    needed = [word for pair in SMALLEST.items() for word in pair]
    migration = migrate_words(["torchrun", program, *needed, *words, f"--{flag}", value], "test")
    return migration, next(each for each in migration.accounts if each.flag == f"--{flag} {value}")


def effects(flag: str, value: str) -> Iterator[tuple[Migration, FlagOutcome]]:
    """Where a flag has an effect with this value."""
    found = (migrated(context, flag, value) for context in CONTEXTS)
    return ((migration, account) for migration, account in found if account.outcome != "no_effect")


def is_said(account: FlagOutcome, value: str, meant: Any) -> bool:
    """Whether a value is loudly refused, or in the job as what it means."""
    return account.outcome in LOUD or account.value == meant or value in str(account.value)


def test_a_value_that_nobody_knows_is_said() -> None:
    """Of each flag that the table reads: where it has an effect, it is carried as it is, or refused aloud."""
    silent, unread = [], []
    for flag in sorted(READ):
        found = next(effects(flag, UNKNOWN), None)
        if found is None:
            unread.append(flag)
        elif not is_said(found[1], UNKNOWN, SAME.get((flag, UNKNOWN))):
            silent.append(flag)
    assert silent == []
    assert set(unread) <= TEXTS


def test_each_choice_of_megatron_is_what_it_says_or_refused_aloud() -> None:
    """And a choice that a job cannot have leaves the field open, unless that is about speed alone: with the default
    value it would be another job.
    """
    silent, refused = [], set()
    for flag, choice in ((flag, choice) for flag, choices in recorded_choices() if flag in READ for choice in choices):
        found = list(effects(flag, choice))
        meant = SAME.get((flag, choice))
        if not found or not all(is_said(account, choice, meant) for _, account in found):
            silent.append((flag, choice))
        for migration, account in found:
            if account.outcome == "not_supported":
                refused.add(flag)
                assert account.path is not None, (flag, choice)
                assert is_about_speed(account.path) or account.path in migration.missing, (flag, choice)
    assert silent == [UNREPEATED]
    assert {"position-embedding-type", "optimizer", "tokenizer-type", "moe-router-load-balancing-type"} <= refused


def test_choices_of_flags_without_a_field_have_an_effect_nowhere_or_are_listed() -> None:
    """Those without effect whatever they say were looked at, one by one."""
    silent = set()
    for flag, choices in recorded_choices():
        answer = unsupported_flag(flag)
        if flag not in READ and answer is not None and answer.effect == "none":
            silent.add(flag)
        for value in HARMLESS_VALUES.get(flag, ()):
            assert value in choices, flag
    speed = {
        *("async-strategy", "cross-entropy-fusion-impl", "cuda-graph-impl", "distributed-backend"),
        *("empty-unused-memory-level", "flash-attention-version"),
        *(f"ckpt-fully-parallel-{name}" for name in ("load-exchange-algo", "load-process-group", "save-process-group")),
    }
    of_checkpoints_and_logs = {"ckpt-format", "dist-ckpt-strictness", "timing-log-level", "timing-log-option"}
    of_other_models = {"mask-type", "bert-embedder-type", "tiktoken-pattern"}
    others = {flag for flag in silent if not flag.startswith(("inference-", "refit-", "vision-", "swin-"))}
    others = {flag for flag in others if "inference" not in flag}
    assert others <= speed | of_checkpoints_and_logs | of_other_models


@pytest.mark.parametrize("flag", ["bf16", "use-distributed-optimizer", "manual-gc", "swiglu"])
def test_a_switch_with_a_value_is_not_taken_for_one_without(flag: str) -> None:
    migration = migrate_words(["torchrun", _GPT, f"--{flag}=false"], "test")
    [account] = [each for each in migration.accounts if each.flag == f"--{flag} false"]
    assert account.outcome == "no_counterpart"
    assert "precision.dtype" not in migration.values or migration.values["precision.dtype"] == "fp32"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("absolute", "learned_absolute"), ("rotary", "rope"), ("alibi", "alibi"), ("mrope", None), ("yarn", None)],
)
def test_positions_of_other_releases_and_forks(word: str, meant: str | None) -> None:
    migration, account = migrated(_GPT, "position-embedding-type", word)
    if meant is None:
        assert account.outcome == "not_supported"
        assert "model.position_embedding_type" in migration.missing
    else:
        assert account.value == meant
        assert migration.values.get("model.position_embedding_type", "rope") == meant


def test_what_goes_with_a_refused_value_is_kept() -> None:
    program = f"{_GPT} --rotary-base 500 --adam-beta1 0.8"
    migration, _ = migrated(program, "position-embedding-type", "mrope")
    assert migration.values["model.rotary_base"] == 500
    migration, _ = migrated(program, "optimizer", "lion")
    assert migration.values["optimizer.adam_beta1"] == 0.8


@pytest.mark.parametrize(
    ("program", "word", "legal"),
    [
        ("pretrain_gpt.py", "relative", "learned_absolute, rope, none, alibi"),
        ("pretrain_gpt.py", "mrope", "learned_absolute, rope, none, alibi"),
        ("pretrain_bert.py", "alibi", "learned_absolute, rope, none"),
        ("pretrain_t5.py", "alibi", "learned_absolute, rope, relative, none"),
    ],
)
def test_positions_that_a_model_does_not_have(program: str, word: str, legal: str) -> None:
    migration, account = migrated(program, "position-embedding-type", word)
    assert account.outcome == "not_supported"
    assert (account.reason or "").endswith(f" {legal}")
    assert "model.position_embedding_type" in migration.missing


@pytest.mark.parametrize(
    ("words", "flag", "value"),
    [
        ("", "num-layers", "four"),
        ("", "num-layers", "4.5"),
        ("", "num-layers", "²"),
        ("", "num-layers", "inf"),
        ("", "lr", "fast"),
        ("", "distributed-timeout-minutes", "ten"),
        ("", "global-batch-size", "four"),
        ("", "lr-warmup-iters", "four"),
        ("--num-experts 4", "moe-router-topk", "two"),
        ("--num-experts 4", "moe-z-loss-coeff", "small"),
    ],
)
def test_what_is_no_number_is_said_in_words_of_ours(words: str, flag: str, value: str) -> None:
    migration, account = migrated(f"{_GPT} {words}", flag, value)
    assert account.outcome == "not_known"
    assert account.path in migration.missing
    reason = account.reason or ""
    assert value in reason
    assert not any(python in reason for python in ("could not convert", "invalid literal", "has no value"))


@pytest.mark.parametrize(
    ("words", "flag", "value", "path"),
    [
        ("--fp16", "loss-scale", "0", "precision.loss_scale"),
        ("--num-experts 4", "moe-z-loss-coeff", "0", "model.moe_z_loss_coeff"),
        ("--num-experts 4", "moe-expert-capacity-factor", "-1", "model.moe_expert_capacity_factor"),
        ("--save x", "save-interval", "0", "checkpoint.save_interval"),
    ],
)
def test_values_that_mean_none_to_megatron(words: str, flag: str, value: str, path: str) -> None:
    """A loss scale of 0 is the dynamic one: `if config.loss_scale` in its optimizer."""
    migration, account = migrated(f"{_GPT} {words}", flag, value)
    assert account.outcome in ("default", "no_effect")
    assert path not in migration.values
