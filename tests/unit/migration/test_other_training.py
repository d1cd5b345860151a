"""Flags without which something else would be trained: the job is not complete until a person says that it is meant."""

from __future__ import annotations

import pytest
from support.refused import refused
from unit.migration.conftest import SMALLEST, Flags

from orchestrator.migration.from_megatron import migrate_words
from orchestrator.migration.megatron_flags.unsupported_flags import OPENS, OTHER_TRAINING, WORDS, unsupported_flag
from orchestrator.migration.overrides import override
from orchestrator.migration.report import Migration
from orchestrator.spec.schema.shape import leaf_paths, sections

EXPERTS = "--num-experts 4"
GPT_OSS = "{type: yarn, factor: 32, original_max_position_embeddings: 131072, truncate: false}"


def migrated(words: str, *without: str) -> Migration:
    needed = [word for pair in SMALLEST.items() for word in pair]
    return migrate_words(["torchrun", "pretrain_gpt.py", *needed, *words.split()], "test", without=without)


@pytest.mark.parametrize(
    "flag",
    [
        "--apply-residual-connection-post-layernorm",
        *("--mtp-use-repeated-layer", "--linear-attention-freq 2", "--fp32-residual-connection"),
        *("--experimental-attention-variant dsa", "--embedding-init-method-std 0.1", "--use-mup"),
        "--heterogeneous-layers-config-path x",
        *(
            "--reset-attention-mask --transformer-impl local",
            "--dataloader-type cyclic",
            "--fim-data",
            "--sft",
            "--perform-rl-step",
        ),
        *("--logits-load-dir x", "--freeze-all-layers", "--iterations-to-skip 3 4", "--yaml-cfg x"),
        *("--use-checkpoint-args", "--skip-train", "--ckpt-convert-format torch", "--spec mine layers"),
        *("--embed-layernorm", "--mlp-type residual", "--curriculum-learning-legacy", "--use-kitchen-attention"),
        *(f"--moe-input-jitter-eps 0.1 {EXPERTS}", f"--moe-option-of-a-later-release {EXPERTS}"),
    ],
)
def test_the_job_is_not_complete(flag: str) -> None:
    migration = migrated(flag)
    name = flag.split()[0]
    assert [each.flag.split()[0] for each in migration.of("changes_training")] == [name]
    assert not migration.is_complete
    meant = migrated(flag, name)
    assert meant.is_complete
    assert [each.outcome for each in meant.accounts if each.flag.split()[0] == name] == ["no_effect"]
    assert [note for note in meant.notes if note.startswith(name)], "it stands at the top of the job"


def test_a_mask_that_no_layer_takes_changes_nothing() -> None:
    migration = migrated("--reset-attention-mask")
    assert migration.is_complete
    assert [each.outcome for each in migration.accounts if each.flag == "--reset-attention-mask"] == ["no_effect"]


@pytest.mark.parametrize(
    ("flag", "assignment"),
    [
        ("--softmax-type off-by-one", "model.softmax_type=vanilla"),
        ("--rotary-interleaved --position-embedding-type rope", "model.position_embedding_type=rope"),
        ("--no-position-embedding", "model.position_embedding_type=none"),
        ("--qk-l2-norm", "qk_l2_norm=false"),
        ("--qk-l2-norm --position-embedding-type rope --no-rope-freq 2", "qk_l2_norm=true"),
        ("--init-method-xavier-uniform", "init_method_std=0.01"),
        ("--enable-gpt-oss --position-embedding-type rope", f"model.rope_scaling={GPT_OSS}"),
        ("--pad-vocab-size-to 51200", "model.make_vocab_size_divisible_by=51200"),
        ("--no-weight-decay-cond-type apply_wd_to_qk_layernorm", "optimizer.apply_wd_to_qk_layernorm=true"),
        ("--use-te-activation-func --disable-bias-linear", "model.activation=gelu_tanh"),
        ("--window-size 10,0 --window-attn-skip-freq [1,2]", "model.window_attn_skip_freq=2"),
        ("--position-embedding-type rope --no-rope-freq [0,1]", "model.no_rope_freq=2"),
        ("--step-batch-size-schedule 0:8 10:16", "batch.rampup_batch_size=null"),
        ("--fp4-format e2m1 --fp4-recipe custom --bf16", "precision.fp4=null"),
        ("--sliding-window 64", "model.sliding_window=65"),
        ("--glu-activation geglu", "model.activation=geglu"),
    ],
)
def test_a_field_that_corresponds_stands_open(flag: str, assignment: str) -> None:
    migration = migrated(flag)
    assert len(migration.missing) == 1
    override(migration, assignment)
    assert migration.is_complete


def test_every_such_flag_of_the_table() -> None:
    for name in OTHER_TRAINING:
        words = " ".join([f"--{name}", *(["x"] if WORDS[name] != 0 else [])])
        assert not migrated(f"{EXPERTS} --transformer-impl local {words}").is_complete, name
    assert set(OPENS.values()) <= {*leaf_paths(), *(".".join(path) for path in sections())}
    assert all(name in WORDS or unsupported_flag(name) is None for name in OPENS)


@pytest.mark.parametrize(
    "flag",
    [
        *("--mtp-num-layers 0", "--softmax-type vanilla", "--dataloader-type single", "--mlp-type standard"),
        *("--mtp-loss-scaling-factor 0.1", "--kv-lora-rank 64", "--fim-rate 0.5", "--rope-type rope"),
        *("--moe-router-enable-expert-bias", "--moe-input-jitter-eps 0.1"),  # there are no experts
        *("--log-straggler", "--use-megatron-fsdp", "--optimizer-cpu-offload", "--exit-interval 10"),
        *("--data-parallel-random-init", "--exit-on-missing-checkpoint", "--full-validation", "--use-legacy-models"),
    ],
)
def test_the_training_is_the_same_without(flag: str) -> None:
    assert migrated(flag).is_complete


def test_a_flag_to_leave_out_is_there(flags: Flags) -> None:
    with refused("missing_flag"):
        migrated("--bf16", "use-mup")
    assert migrated("--use_mup", "use_mup").is_complete
    values = migrated("--swiglu", "--swiglu").values
    assert values["model.activation"] == "gelu_tanh", "any flag, as if it was not there"
