"""Flags of Megatron-LM as fields of a spec: each means here what it means there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.refused import refused

from orchestrator.errors import SpecError
from orchestrator.fields.base import Section
from orchestrator.migration.from_megatron import migrate_script, migrate_words
from orchestrator.migration.overrides import override
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.migration.yaml_writer import job_text
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.learning_rate import LearningRateSchedule
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

Flags = Callable[..., Any]
SHARDED = "--use-distributed-optimizer"
ROPE = "--position-embedding-type rope"
LETTERED = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|t|tL --global-batch-size 16"
LLAMA = {
    **{"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


def at(job: Any, path: str) -> Any:
    for name in path.split("."):
        job = getattr(job, name)
    return job


def test_what_megatron_does_without_flags_is_written(flags: Flags) -> None:
    """Its defaults that are not ours, from its argument parser."""
    job = flags().job
    assert job.model.position_embedding_type == "learned_absolute"
    assert (job.model.hidden_dropout, job.model.attention_dropout) == (0.1, 0.1)
    assert job.precision.dtype == "fp32"
    assert job.schedule.lr_decay_style == "linear"
    assert not job.parallelism.use_distributed_optimizer
    assert not job.parallelism.overlap_grad_reduce
    assert not job.parallelism.overlaps_param_gather
    assert not job.checkpoint.async_save
    assert (job.evaluation.eval_interval, job.evaluation.eval_iters) == (1000, 100)
    assert job.tracking.log_interval == 100
    assert job.data.tokenizer.type == "gpt2_bpe"
    assert job.optimizer.weight_decay == 0.01
    assert (job.optimizer.adam_beta1, job.optimizer.adam_beta2, job.optimizer.adam_eps) == (0.9, 0.999, 1e-8)
    assert (job.optimizer.clip_grad, job.optimizer.min_lr, job.runtime.seed) == (1.0, 0.0, 1234)
    assert (job.model.init_method_std, job.model.make_vocab_size_divisible_by) == (0.02, 128)
    assert job.data.split == "969,30,1"
    assert job.global_batch_size == 2 * 8


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        ("--bf16", "precision.dtype", "bf16"),
        ("--fp16", "precision.grad_reduce_in_fp32", False),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "precision.grad_reduce_in_fp32", True),
        ("--bf16 --grad-reduce-in-bf16", "precision.grad_reduce_in_fp32", False),
        ("--fp16 --initial-loss-scale 65536 --loss-scale-window 500", "precision.loss_scale_window", 500),
        ("--swiglu", "model.ffn_hidden_size", 320),
        ("--swiglu --ffn-hidden-size 384", "model.ffn_hidden_size", 384),
        ("--squared-relu", "model.activation", "squared_relu"),
        ("--swiglu --squared-relu", "model.activation", "swiglu"),
        ("--apply-layernorm-1p", "model.apply_layernorm_1p", True),
        ("--window-size 127,0", "model.sliding_window", 128),
        ("--window-size (127,0) --window-attn-skip-freq 2", "model.window_attn_skip_freq", 2),
        ("--window-size=-1,0", "model.sliding_window", None),
        ("--window-size 127,0 --window-attn-skip-freq [1,0]*2", "model.window_attn_skip_freq", [1, 0, 1, 0]),
        ("--window-attn-skip-freq 2", "model.window_attn_skip_freq", None),
        (f"{ROPE} --no-rope-freq 2", "model.no_rope_freq", 2),
        ("--no-rope-freq 2", "model.no_rope_freq", None),
        ("--use-rope-scaling", "model.rope_scaling", None),
        (f"{ROPE} --use-rope-scaling", "model.rope_scaling", LLAMA),
        (f"{ROPE} --use-rope-scaling --rope-scaling-factor 32", "model.rope_scaling", LLAMA | {"factor": 32.0}),
        (f"{ROPE} --rope-scaling-factor 32", "model.rope_scaling", None),
        (f"{ROPE} --rotary-seq-len-interpolation-factor 4", "model.rope_scaling", {"type": "linear", "factor": 4.0}),
        ("--openai-gelu", "model.activation", "gelu_tanh"),
        ("--group-query-attention --num-query-groups 2", "model.num_query_groups", 2),
        ("--group-query-attention", "model.num_query_groups", 1),
        ("--attention-backend flash", "runtime.attention_backend", "auto"),
        ("--attention-backend auto", "runtime.attention_backend", "auto"),
        ("--attention-backend fused", "runtime.attention_backend", "fused"),
        ("--num-query-groups 2", "model.num_query_groups", None),
        ("--position-embedding-type rope --rotary-percent 0.5", "model.rotary_percent", 0.5),
        ("--rotary-percent 0.5", "model.rotary_percent", 1.0),
        ("--use-rotary-position-embeddings", "model.position_embedding_type", "rope"),
        ("--normalization=RMSNorm", "model.normalization", "RMSNorm"),
        ("--layernorm-epsilon 1e-6", "model.norm_epsilon", 1e-6),
        ("--disable-bias-linear --add-qkv-bias", "model.add_bias_linear", False),
        ("--tensor-model-parallel-size 2 --sequence-parallel", "parallelism.sequence_parallel", True),
        ("--sequence-parallel", "parallelism.sequence_parallel", False),
        ("--model-parallel-size 4", "parallelism.tensor_model_parallel_size", 4),
        ("--tensor_model_parallel_size 2", "parallelism.tensor_model_parallel_size", 2),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --global-batch-size 32",
            "parallelism.virtual_pipeline_model_parallel_size",
            2,
        ),
        (f"{SHARDED} --overlap-grad-reduce", "parallelism.overlap_param_gather", False),
        (f"{SHARDED} --overlap-grad-reduce --overlap-param-gather", "parallelism.overlap_param_gather", None),
        ("--lr-warmup-iters 0 --lr-warmup-fraction 0.1", "schedule.lr_warmup_fraction", 0.1),
        ("--warmup 0.1", "schedule.lr_warmup_fraction", 0.1),
        ("--lr-decay-style WSD --lr-wsd-decay-iters 0", "schedule.lr_wsd_decay_iters", 0),
        ("--lr-decay-style inverse-square-root", "schedule.lr_decay_style", "inverse-square-root"),
        ("--eval-iters 0 --eval-interval 10", "evaluation.eval_interval", None),
        ("--split 100,0,0", "evaluation.eval_interval", None),
        ("--split 99,1", "data.split", "99,1,0"),
        ("--split '99,1,0'", "data.split", "99,1,0"),
        ("--save c --save-interval 20", "checkpoint.keep_every", 20),
        ("--save c --save-interval 20 --save-retain-interval 40", "checkpoint.keep_every", 40),
        ("--save c --save-interval 5000", "checkpoint.save_interval", None),
        ("--save c --persistent-save-interval 20", "checkpoint.save_interval", 20),
        ("--seed 7", "data.seed", 7),
        ("--seed 7", "runtime.seed", 7),
        ("--recompute-activations", "runtime.recompute_granularity", "selective"),
        ("--recompute-granularity full --recompute-activations", "runtime.recompute_granularity", "selective"),
        (
            "--use-rotary-position-embeddings --position-embedding-type learned_absolute",
            "model.position_embedding_type",
            "rope",
        ),
        ("--layernorm-epsilon 1e-3 --norm-epsilon 1e-6", "model.norm_epsilon", 1e-6),
        ("--checkpoint-activations", "runtime.recompute_num_layers", 1),
        ("--activations-checkpoint-method block --checkpoint-num-layers 2", "runtime.recompute_num_layers", 2),
        (LETTERED, "parallelism.pipeline_model_parallel_layout", "Et|t|t|tL"),
        (LETTERED, "parallelism.virtual_pipeline_model_parallel_size", 2),
        ("--cpu-offloading-num-layers 2", "runtime.cpu_offloading_num_layers", 2),
        ("--cpu-offloading-num-layers 0", "runtime.cpu_offloading_num_layers", None),
        ("--no-gradient-accumulation-fusion", "runtime.gradient_accumulation_fusion", False),
        ("--transformer-impl local", "runtime.layers", "torch"),
        ("--distributed-timeout-minutes 60", "runtime.hang_timeout", 3600),
        ("--wandb-exp-name my_run", "name", "my_run"),
        ("--wandb-project mine --wandb-entity us", "tracking.wandb", {"project": "mine", "entity": "us"}),
        ("--wandb-project=", "tracking.wandb", None),
        ("--wandb-entity us", "tracking.wandb", None),
        ("--tensorboard-dir logs/tb", "tracking.tensorboard", True),
        ("--tensorboard-dir=", "tracking.tensorboard", False),
        ("--lr 1 --lr 0.5", "optimizer.lr", 0.5),
        ("--train-iters 1e3", "schedule.train_iters", 1000),
    ],
)  # fmt: skip
def test_one_flag(flags: Flags, words: str, path: str, value: Any) -> None:
    found = at(flags(*words.split()).job, path)
    assert (found.model_dump(exclude_unset=True) if isinstance(found, Section) else found) == value


def test_tensor_parallelism_overlaps_by_itself(flags: Flags) -> None:
    words = ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--bf16"]
    for migrated in (flags(*words), flags(*words, "--tp-comm-overlap")):
        assert migrated.job.parallelism.tp_comm_overlap is None
    assert migrated.outcome("--tp-comm-overlap") == "no_effect"
    assert "wherever possible" in migrated.reason("--tp-comm-overlap")


def test_samples_and_ramp_up(flags: Flags) -> None:
    words = "--train-samples 5000 --global-batch-size 64 --rampup-batch-size 16 16 1000 --lr-warmup-samples 100"
    job = flags(*words.split(), train_iters=None).job
    assert job.batch.rampup_batch_size.model_dump() == {"start_global_batch_size": 16, "increment": 16, "samples": 1000}
    assert (job.schedule.train_samples, job.schedule.lr_warmup_samples) == (5000, 100)


@pytest.mark.parametrize(
    ("words", "drops", "iterations", "decay"),
    [
        ("--global-batch-size 16 --train-samples 160", False, 10, 160),
        ("--global-batch-size 16 --train-samples 170", True, 10, 170),
        ("--train-samples 170", True, 10, 170),
        ("--global-batch-size 16 --train-samples 170 --lr-decay-samples 150", True, 10, 150),
        # 8 up to 80 samples, then a step of 16 that takes the ramp-up's place, then whole ones.
        ("--global-batch-size 16 --rampup-batch-size 8 8 80 --train-samples 184", True, 16, 184),
        ("--global-batch-size 16 --rampup-batch-size 8 8 80 --train-samples 192", True, 17, 192),
        ("--global-batch-size 16 --rampup-batch-size 8 8 80 --train-samples 72", True, 10, 72),
    ],
)
def test_a_length_in_samples_is_the_steps_of_megatron_lm(
    flags: Flags, words: str, drops: bool, iterations: int, decay: int
) -> None:
    migrated = flags(*words.split(), train_iters=None, micro_batch_size="1" if "--rampup" in words else "2")
    schedule = BatchSchedule.of(migrated.job)
    assert migrated.job.schedule.drop_last is drops
    assert (schedule.train_iters, LearningRateSchedule.of(migrated.job).decay_samples) == (iterations, decay)
    assert to_megatron(migrated.job).unsaid == ()
    written = migrate_words(["torchrun", "pretrain_gpt.py", *to_megatron(migrated.job).words], "test")
    assert load_text(job_text(written)).job.schedule == migrated.job.schedule


def test_a_length_that_is_rounded_up_is_written_as_what_megatron_lm_takes_as_many_steps_for(flags: Flags) -> None:
    words = ["--global-batch-size", "16", "--rampup-batch-size", "8", "8", "80", "--train-samples", "192"]
    ours = flags(*words, train_iters=None, micro_batch_size="1").job
    for length in ({"train_samples": 184}, {"train_samples": 72}, {"train_tokens": 72 * 64 - 1, "train_samples": None}):
        changed = {**ours.schedule.model_dump(), "drop_last": False, **length}
        job = JobSpec.model_validate({**ours.model_dump(), "schedule": changed})
        command = to_megatron(job)
        assert not any(each.path.startswith("schedule.") for each in command.unsaid)
        back = load_text(job_text(migrate_words(["torchrun", "pretrain_gpt.py", *command.words], "test"))).job
        assert BatchSchedule.of(back).train_iters == BatchSchedule.of(job).train_iters
        assert LearningRateSchedule.of(back) == LearningRateSchedule.of(job)


@pytest.mark.parametrize(
    ("words", "blend"),
    [
        (["a"], [("a", 1.0)]),
        (["0.3", "a", "0.7", "b"], [("a", 0.3), ("b", 0.7)]),
        (["0.3 a 0.7 b"], [("a", 0.3), ("b", 0.7)]),
        (["my data"], [("my data", 1.0)]),
        (["2", "7"], [("7", 2.0)]),
    ],
)
def test_blends(flags: Flags, words: list[str], blend: list[tuple[str, float]]) -> None:
    job = flags("--data-path", *words, data_path=None).job
    assert [(entry.path, entry.weight) for entry in job.data.blend] == blend


def test_parts_with_sources_of_their_own(flags: Flags) -> None:
    words = "--train-data-path 1 a 2 b --valid-data-path c --test-data-path d --split 9,1,0"
    migrated = flags(*words.split(), data_path=None)
    job = migrated.job
    assert [entry.path for entry in job.data.blend] == ["a", "b"]
    assert [entry.path for entry in (*job.data.validation, *job.data.test)] == ["c", "d"]
    assert job.data.split == "1,0,0"
    assert migrated.outcome("--split") == "no_effect"


@pytest.mark.parametrize(
    ("more", "is_another"),
    [
        ("", False),
        ("--make-vocab-size-divisible-by 64", False),
        ("--make-vocab-size-divisible-by 1", True),
        ("--make-vocab-size-divisible-by 1 --tensor-model-parallel-size 2", True),
        ("--make-vocab-size-divisible-by 1 --padded-vocab-size 264", False),
        ("--make-vocab-size-divisible-by $N", True),
    ],
)
def test_bytes_of_a_null_tokenizer_have_no_other_network_here(flags: Flags, more: str, is_another: bool) -> None:
    """Its 257 entries are byte_level's 261 only where both are padded to the same number."""
    migrated = flags("--tokenizer-type", "NullTokenizer", "--vocab-size", "256", *more.split())
    assert ("model.vocab_size" in migrated.migration.missing) is is_another
    override(migrated.migration, "model.vocab_size=300")
    assert "model.vocab_size" not in migrated.migration.missing


@pytest.mark.parametrize("size", [None, 261, 300, 1000])
@pytest.mark.parametrize("multiple", [1, 128])
def test_a_job_of_bytes_has_as_many_rows_when_it_is_rendered(flags: Flags, multiple: int, size: int | None) -> None:
    byte_level = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "256", "--padded-vocab-size", "261")
    migration = flags(*byte_level, "--make-vocab-size-divisible-by", str(multiple)).migration
    override(migration, f"model.vocab_size={'null' if size is None else size}")
    job = load_text(job_text(migration)).job
    words = to_megatron(job).words
    assert words[words.index("--vocab-size") + 1] == "256", "whatever the rows, that id ends a document"
    back = load_text(job_text(migrate_words(["torchrun", "pretrain_gpt.py", *words], "test"))).job
    assert vocabulary(back).padded_size == vocabulary(job).padded_size
    told = int(words[words.index("--padded-vocab-size") + 1]) if "--padded-vocab-size" in words else 384
    assert told == vocabulary(job).padded_size


@pytest.mark.parametrize(
    ("words", "kind", "path"),
    [
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model t", "huggingface", "t"),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model t.model", "sentencepiece", "t.model"),
        ("--tokenizer-type BertWordPieceCase", "wordpiece", "vocab.json"),
        ("--tokenizer-type BertWordPieceLowerCase", "wordpiece", "vocab.json"),
        ("--tokenizer-type NullTokenizer --vocab-size 256", "byte_level", None),
    ],
)
def test_tokenizers(flags: Flags, words: str, kind: str, path: str | None) -> None:
    job = flags(*words.split()).job
    assert (job.data.tokenizer.type, job.data.tokenizer.path) == (kind, path)
    assert job.model.vocab_size is None


def test_random_tokens(flags: Flags) -> None:
    words = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "999"]
    job = flags(*words, data_path=None, vocab_file=None, merge_file=None).job
    assert job.data.random_tokens
    assert job.model.vocab_size == 1000  # and an end of document


SECOND = ("--moe-token-dispatcher-type", "--moe-router-load-balancing-type")
"""What is meant where another flag comes first."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--num-experts 8 --moe-token-dispatcher-type flex", "alltoall"),
        ("--num-experts 8 --moe-router-load-balancing-type aux_loss sinkhorn", "seq_aux_loss"),
        ("--moe-pad-expert-input-to-capacity", "experts"),
        ("--fp8-format e4m3 --fp8-recipe custom", "delayed, tensorwise, blockwise, mxfp8"),
        ("--fp8-param-gather", "weights stay in bf16"),
        ("--no-fp8-wgrad", "Transformer Engine"),
        ("--fp4-format e2m1 --fp4-recipe custom", "nvfp4"),
        ("--fp4-format e2m1 --fp8-format hybrid", "FP8 or in FP4"),
        ("--fp4-param-gather", "weights stay in bf16"),
        ("--optimizer lion", "adam"),
        ("--optimizer-offload-fraction 1.5 --optimizer-cpu-offload", "from 0 to 1"),
        ("--main-grads-dtype bf16", "fp32"),
        ("--position-embedding-type mrope", "rope"),
        ("--softmax-type off-by-one", "learnable"),
        ("--check-for-spiky-loss", "not detected"),
        ("--log-straggler", "health_check"),
        ("--inprocess-restart", "launch.on_failure"),
        ("--check-weight-hash-across-dp-replicas-interval 10", "not compared"),
        ("--rerun-mode validate_results", "not computed twice"),
        ("--tokenizer-type TikTokenizer --tokenizer-model x", "tokenizers"),
        ("--recompute-granularity selective --recompute-modules core_attn mla_up_proj", "core_attn"),
        ("--data-args-path file", "data.blend"),
        ("--train-weighted-split-paths-path file", "data.blend"),
        ('--valid-weighted-split-paths "VALID: 0.4 0.9:1 a, 0.6 0.9:1 b" "OTHER: 1 0:1 c"', "data.validation"),
        ("--pad-vocab-size-to 250880", "model.make_vocab_size_divisible_by"),
        ("--no-position-embedding", "none"),
        ("--attention-backend unfused", "auto, fused, flash"),
    ],
)
def test_what_this_version_cannot_do_is_said_aloud(flags: Flags, words: str, said: str) -> None:
    migrated = flags(*words.split())
    flag = next((name for name in ("--recompute-modules", *SECOND) if name in words), words.split()[0])
    assert migrated.outcome(flag) == "not_supported"
    assert said in migrated.reason(flag)
    head = migrated.text.split("\nname:")[0]
    assert "NOT SUPPORTED" in head
    assert flag in head


def test_experts(flags: Flags) -> None:
    words = (
        "--num-experts 8 --moe-layer-freq ([0]*2+[1,0]) --moe-ffn-hidden-size 96 --moe-grouped-gemm "
        "--moe-aux-loss-coeff 1e-2 --moe-router-load-balancing-type seq_aux_loss "
        "--disable-bias-linear --moe-permute-fusion"
    )
    migrated = flags(*words.split())
    model = migrated.job.model
    assert (model.num_experts, model.moe_ffn_hidden_size, model.moe_grouped_gemm) == (8, 96, True)
    assert model.moe_layer_freq == [0, 0, 1, 0]
    assert (model.moe_router_load_balancing_type, model.moe_aux_loss_coeff) == ("seq_aux_loss", 0.01)
    assert model.moe_token_dispatcher_type == "allgather", "Megatron-LM's default"
    assert migrated.outcome("--moe-permute-fusion") == "no_effect"


def test_options_of_experts_without_experts_have_no_effect(flags: Flags) -> None:
    migrated = flags("--moe-router-topk", "4", "--moe-token-dispatcher-type", "alltoall")
    assert migrated.outcome("--moe-router-topk") == "no_effect"
    assert migrated.job == flags().job


def test_what_the_trackers_keep_is_in_the_run_directory(flags: Flags) -> None:
    migrated = flags("--tensorboard-dir", "x", "--wandb-project", "p", "--wandb-save-dir", "y")
    assert (migrated.outcome("--tensorboard-dir"), migrated.outcome("--wandb-save-dir")) == ("carried", "no_effect")
    assert "tensorboard/ in the run directory" in migrated.reason("--tensorboard-dir")
    assert "wandb/" in migrated.reason("--wandb-save-dir")


def test_wandb_is_asked_for_where_only_its_project_is_not_known(script_text: Callable[[str], str]) -> None:
    text = script_text("slurm.sh").replace("--wandb-project pretraining", "--wandb-project $TEAM --wandb-entity us")
    migration = migrate_script(text, "slurm.sh")
    [account] = [each for each in migration.of("not_known") if each.path == "tracking.wandb.project"]
    assert "--set-var TEAM=VALUE" in str(account.reason)
    assert "  wandb:\n    entity: us  # --wandb-entity us\n    mode: online  # --wandb-project" in job_text(migration)


@pytest.mark.parametrize(
    "words",
    [
        *("--tensorboard-log-interval 5", "--no-masked-softmax-fusion", "--use-flash-attn", "--use-mcore-models"),
        *("--dataloader-type single", "--num-experts 0", "--loss-scale 12", "--profile --profile-ranks 0 1 2"),
        "--rotary-base 5",
        *("--inference-max-requests 8", "--retriever-seq-length 1", "--mask-prob 0.1", "--DDP-impl local"),
    ],
)
def test_what_has_no_effect_is_said_with_the_reason(flags: Flags, words: str) -> None:
    flag = words.split()[0]
    migrated = flags(*words.split())
    assert migrated.outcome(flag) == "no_effect"
    assert migrated.reason(flag)
    assert migrated.job == flags().job


def test_unknown_flags_and_stray_words_are_listed(flags: Flags) -> None:
    migrated = flags("--num-layer", "9", "--my-own-switch", "--bf16", "true", "--another=1")
    assert [account.flag for account in migrated.migration.of("no_counterpart")] == [
        *("--num-layer 9", "--my-own-switch", "--another 1", "true"),
    ]
    way_out = "take it out where the training does not depend on it, or write what it stands for (--set KEY=VALUE; "
    assert f"not a known flag: did you mean --num-layers? Else {way_out}" in migrated.reason("--num-layer")
    assert f"not a known flag: {way_out}" in migrated.reason("--my-own-switch")
    assert "runtime.train_step_arguments)" in migrated.text, "whole, at the top of the job"
    assert migrated.job.precision.dtype == "bf16"


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("--num-layers four", "model.num_layers"),
        ("--num-layers 4.5", "model.num_layers"),
        ("--hidden-size", "model.hidden_size"),
        ("--lr fast", "optimizer.lr"),
        ("--rampup-batch-size 1 2", "batch.rampup_batch_size"),
        ("--split a,b", "data.split"),
        ("--data-path 0.5 a b c", "data.blend"),
        ("--data-path a b", "data.blend"),
        ("--data-path a b c", "data.blend"),
        ("--train-iters 1e999", "schedule.train_iters"),
        ("--seed x", "runtime.seed"),
        ("--lr-warmup-iters 2.5", "schedule.lr_warmup_iters"),
        ("--eval-iters many", "evaluation.eval_iters"),
        ("--cpu-offloading-num-layers some", "runtime.cpu_offloading_num_layers"),
    ],
)
def test_values_that_are_none_have_to_be_written(flags: Flags, words: str, path: str) -> None:
    migrated = flags(*words.split())
    assert path in migrated.migration.missing
    assert migrated.outcome(words.split()[0]) == "not_known"
    with pytest.raises(SpecError) as raised:
        _ = migrated.job
    assert any(path.startswith(problem.paths[0]) for problem in raised.value.problems if problem.paths)


def test_a_prefix_that_the_shell_cut_in_two_is_not_taken_for_a_list_without_weights(flags: Flags) -> None:
    migrated = flags(*["--data-path", "0.3", "a", "0.7", "b", "c"], data_path=None)
    assert "weights and prefixes do not alternate" in migrated.reason("--data-path")


@pytest.mark.parametrize("switch", ["--use-flash-attn", "--finetune", "--tensorboard-dir x", "--bf16"])
def test_what_stands_behind_a_flag_that_takes_no_more_is_not_lost_with_it(flags: Flags, switch: str) -> None:
    migrated = flags(*switch.split(), "more", "--swiglu")
    assert [account.flag for account in migrated.migration.of("no_counterpart")] == ["more"]


def test_flags_need_a_training(flags: Flags) -> None:
    with refused("not_training_flags"):
        migrate_words(["ls", "-l"], "the line")
