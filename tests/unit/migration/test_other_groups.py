"""What scripts of other groups than NVIDIA's write: their flags, launchers and exports."""

from __future__ import annotations

from typing import Any

import pytest
from support.training import tiny_job

from orchestrator.migration.from_megatron import migrate_script, migrate_words
from orchestrator.migration.report import Migration
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text

FLAGS = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 "
    "--global-batch-size 64 --train-iters 10 --lr 1e-3 --data-path data --vocab-file v --merge-file m"
)


def of_flags(more: str = "") -> Migration:
    return migrate_words([*FLAGS.split(), *more.split()], "flags")


def of_script(text: str, **given: str) -> Migration:
    return migrate_script(text, "train.sh", given=given)


def told(migration: Migration, part: str) -> list[tuple[str, str]]:
    return [(each.outcome, each.reason or "") for each in migration.accounts if part in each.flag]


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        ("--num-experts 8 --topk 1", "model.moe_router_topk", 1),
        ("--num-experts 8 8 --topk 1", "model.num_experts", 8),
        ("--ds-sequence-parallel-size 2", "parallelism.context_parallel_size", 2),
        ("--lr-decay-tokens 64000 --lr-decay-iters 7", "schedule.lr_decay_samples", 1000),
        ("--lr-decay-tokens 64000 --lr-decay-iters 7", "schedule.lr_decay_iters", None),
        ("--lr-warmup-tokens 6401 --lr-warmup-iters 7", "schedule.lr_warmup_samples", 101),
        ("--train-tokens 6400", "schedule.train_tokens", 6400),
        ("--train-tokens 6400", "schedule.train_iters", None),
        ("--train-tokens 64000", "schedule.train_tokens", None),
        ("--train-tokens 64000", "schedule.train_iters", 10),
        ("--num-key-value-heads 2", "model.num_query_groups", 2),
        ("--num-key-value-heads 4", "model.num_query_groups", None),
        ("--attention-head-type multiquery", "model.num_query_groups", 1),
        ("--normalization rmsnorm", "model.normalization", "RMSNorm"),
        ("--moe-num-experts 8 --moe-top-k 1 --moe-loss-weight 0.1", "model.num_experts", 8),
        ("--moe-num-experts 8 --moe-top-k 1 --moe-loss-weight 0.1", "model.moe_router_topk", 1),
        ("--moe-num-experts 8 --moe-top-k 1 --moe-loss-weight 0.1", "model.moe_aux_loss_coeff", 0.1),
        ("--num-experts 8 --moe-expert-parallel-size 4", "parallelism.expert_model_parallel_size", 4),
    ],
)
def test_what_others_call_by_another_name(flags: str, path: str, value: Any) -> None:
    migration = of_flags(flags)
    assert migration.values.get(path) == value
    assert not [each for each in migration.accounts if each.outcome in ("not_supported", "not_known")]
    assert not told(migration, "not a known flag")


def test_a_length_in_tokens_goes_over_one_in_samples() -> None:
    """Megatron-DeepSpeed ends by what is first; its scripts write samples that are never reached."""
    words = FLAGS.replace("--train-iters 10", "--train-samples 999999999")
    migration = migrate_words([*words.split(), "--train-tokens", "6400", "--lr-decay-tokens", "64000"], "flags")
    schedule = load_text(job_text(migration)).job.schedule
    assert (schedule.train_tokens, schedule.train_samples, schedule.drop_last) == (6400, None, False)
    assert schedule.lr_decay_samples == 1000
    assert [outcome for outcome, _ in told(migration, "--train-samples")] == ["no_effect"]
    assert "schedule.train_tokens" in of_flags("--train-tokens 6B").missing


def test_other_numbers_of_experts_in_other_layers() -> None:
    migration = of_flags("--num-experts 4 8 --topk 1")
    assert "model.num_experts" in migration.missing
    assert not migration.of("no_counterpart")
    assert "model.moe_layer_freq" in of_flags("--num-experts 4 --expert-interval 2").missing


@pytest.mark.parametrize(
    "flag", ["--no-pipeline-parallel", "--use-flash-attn-v2", "--cpu-optimizer", "--mlp-type standard"]
)
def test_flags_of_megatron_deepspeed_that_change_nothing(flag: str) -> None:
    migration = of_flags(flag)
    assert not migration.of("no_counterpart")
    assert migration.is_complete


@pytest.mark.parametrize(
    ("flags", "activation", "flag"),
    [
        ("", "gelu_tanh", None),
        ("--no-bias-gelu-fusion", "gelu", "--no-bias-gelu-fusion"),
        ("--disable-bias-linear", "gelu", None),
        ("--swiglu --no-bias-gelu-fusion", "swiglu", None),
        ("--num-experts 8 --disable-bias-linear", "gelu", None),
        ("--squared-relu --no-bias-gelu-fusion", "squared_relu", "--no-bias-gelu-fusion"),
        ("--squared-relu --disable-bias-linear", "squared_relu", None),
        ("--openai-gelu", "gelu_tanh", None),
        ("--openai-gelu --disable-bias-linear", "gelu", None),
        ("--openai-gelu --no-bias-gelu-fusion", "gelu", "--no-bias-gelu-fusion"),
        ("--openai-gelu --no-bias-gelu-fusion --use-legacy-models", "gelu_tanh", None),
    ],
)
def test_gelu_with_a_bias_is_the_approximation(flags: str, activation: str, flag: str | None) -> None:
    """Megatron-LM adds the bias in one kernel with it, unless it is told not to; and back.

    megatron-core refuses that kernel for other functions, and takes no notice of --openai-gelu.
    """
    job = load_text(job_text(of_flags(flags))).job
    assert job.model.activation == activation
    written = to_megatron(job).words
    assert ("--no-bias-gelu-fusion" in written) == (flag is not None)
    assert load_text(job_text(migrate_words(written, "flags"))).job.model.activation == activation


def test_what_openai_gelu_did_in_earlier_releases_is_said() -> None:
    [note] = [each for each in of_flags("--openai-gelu --disable-bias-linear").notes if "openai-gelu" in each]
    assert "write model.activation: gelu_tanh" in note
    [(outcome, _)] = told(of_flags("--openai-gelu --disable-bias-linear"), "--openai-gelu")
    assert outcome == "no_effect"
    by_engine = of_flags("--use-te-activation-func --disable-bias-linear")
    assert [(each.flag, each.path) for each in by_engine.of("not_supported")] == [
        ("--use-te-activation-func", "model.activation")
    ]
    assert not of_flags("--openai-gelu --use-te-activation-func --swiglu").of("not_supported")


def test_an_approximation_that_megatron_does_not_compute_is_listed() -> None:
    job = load_text(job_text(of_flags("--disable-bias-linear"))).job
    tanh = job.model_copy(update={"model": job.model.model_copy(update={"activation": "gelu_tanh"})})
    command = to_megatron(tanh)
    assert "--openai-gelu" not in command.words
    [listed] = [each for each in command.unsaid if each.path == "model.activation"]
    assert "megatron-core has the exact function alone" in listed.reason


@pytest.mark.parametrize("base", [500000, 999999.4420358813])
def test_a_rotary_base_that_is_a_fraction_is_listed(base: float) -> None:
    """Megatron-LM's parser takes whole numbers alone."""
    job = load_text(job_text(of_flags("--position-embedding-type rope"))).job
    command = to_megatron(job.changed(model={"rotary_base": base}))
    reasons = [each.reason for each in command.unsaid if each.path == "model.rotary_base"]
    assert reasons == ([] if isinstance(base, int) else ["--rotary-base cannot say it"])
    assert ("--rotary-base" in command.words) is isinstance(base, int)


@pytest.mark.parametrize(
    ("kind", "lower_case"),
    [("BertWordPieceLowerCase", True), ("BertWordPieceCase", False), (None, True)],
)
def test_the_case_of_wordpieces_is_kept(kind: str | None, lower_case: bool) -> None:
    """There and back; without the flag BERT's program takes the lower-cased one."""
    words = [*FLAGS.split(), *(["--tokenizer-type", kind] if kind else [])]
    job = load_text(job_text(migrate_words(["torchrun", "pretrain_bert.py", *words], "flags"))).job
    assert (job.data.tokenizer.type, job.data.tokenizer.lower_case) == ("wordpiece", lower_case)
    command = to_megatron(job)
    assert command.words[command.words.index("--tokenizer-type") + 1] == (kind or "BertWordPieceLowerCase")
    again = load_text(job_text(migrate_words(["torchrun", command.program, *command.words], "back"))).job
    assert again.data.tokenizer == job.data.tokenizer


def test_a_window_of_a_bert_is_on_both_sides() -> None:
    """There and back; another one is not had here."""
    words = [*FLAGS.split(), "--window-size", "15,15", "--window-attn-skip-freq", "2"]
    job = load_text(job_text(migrate_words(["torchrun", "pretrain_bert.py", *words], "flags"))).job
    assert (job.model.sliding_window, job.model.window_attn_skip_freq) == (16, 2)
    command = to_megatron(job)
    assert command.words[command.words.index("--window-size") + 1] == "15,15"
    words[-3] = "15,0"
    refused = migrate_words(["torchrun", "pretrain_bert.py", *words], "flags")
    assert [each.path for each in refused.of("not_supported")] == ["model.sliding_window"]


def test_what_megatron_lms_bert_has_not_is_listed() -> None:
    model = "{preset: modernbert-base, rope_scaling: {type: linear, factor: 2.0}}"
    text = "name: x, batch: {}, data: {random_tokens: true}, optimizer: {lr: 1e-4}, schedule: {train_iters: 1}"
    unsaid = {each.path for each in to_megatron(load_text(f"{{{text}, model: {model}}}").job).unsaid}
    own = {"rotary_base", "rotary_base_local", "rope_scaling", "embedding_norm", "norm_bias", "bert_head_bias"}
    assert {f"model.{name}" for name in own} <= unsaid
    assert "model.activation" in unsaid


@pytest.mark.parametrize(
    ("export", "outcome", "reason"),
    [
        ("NVTE_FUSED_ATTN=0", "no_counterpart", "runtime.attention_backend"),
        ("NVTE_FLASH_ATTN=1", "no_counterpart", "runtime.attention_backend"),
        ("PYTHONPATH=/opt/Megatron-LM", "no_counterpart", "the megatron-core that trains"),
        ("PYTHONPATH=/opt/Megatron-LM:$PYTHONPATH", "no_counterpart", "the megatron-core that trains"),
        ("LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH", "carried", ""),
        ("WANDB_MODE=offline", "carried", ""),
    ],
)
def test_exports_that_would_break_or_change_a_training(export: str, outcome: str, reason: str) -> None:
    """They are told of, also where the script reads them itself."""
    name = export.partition("=")[0]
    migration = of_script(f"export {export}\necho ${name}\ntorchrun --nproc-per-node 2 pretrain_gpt.py {FLAGS}\n")
    [(found, why)] = told(migration, f"export {name}")
    assert found == outcome
    assert reason in why
    assert (name in migration.values.get("launch.env", {})) == (outcome == "carried")


def test_a_variable_behind_an_unknown_flag_may_hold_flags() -> None:
    script = f"torchrun --nproc-per-node 2 pretrain_gpt.py {FLAGS} --patch-type Llama $pr_options ${{do_options}}\n"
    migration = of_script(script)
    unknown = [each for each in migration.accounts if each.outcome == "not_known"]
    assert ["may hold flags" in (each.reason or "") for each in unknown] == [True, True]
    assert not [
        each for each in of_script(script, pr_options="--bf16", do_options="").accounts if each.outcome == "not_known"
    ]


def test_how_many_gpus_is_said_to_be_assumed_or_unknown() -> None:
    taken = of_script(
        f"NODES=${{SLURM_NNODES:-1}}\ntorchrun --nnodes $NODES --nproc-per-node 8 pretrain_gpt.py {FLAGS}\n"
    )
    assert "SLURM_NNODES is taken from the script's default: 1 (--set-var SLURM_NNODES=VALUE)" in taken.notes
    for started in (f"deepspeed pretrain_gpt.py {FLAGS}", f"srun python pretrain_gpt.py {FLAGS}"):
        assert any("the number of GPUs is not given" in note for note in of_script(started).notes), started
    assert not any("nothing says" in note for note in taken.notes)


@pytest.mark.parametrize(
    ("options", "nodes", "gpus"),
    [
        ("-np 64 --npernode 8", 8, 8),
        ("-N 8 -np 64", 8, 8),
        ("-np 8", None, 8),
        ("--npernode 8", None, 8),
        ("-np 60 --npernode 8", "???", 8),
    ],
)
def test_processes_on_each_machine_of_mpirun(options: str, nodes: Any, gpus: int) -> None:
    values = of_script(f"mpirun {options} python pretrain_gpt.py {FLAGS}\n").values
    assert (values.get("launch.nodes"), values["launch.gpus_per_node"]) == (nodes, gpus)


def test_variables_that_mpirun_hands_on() -> None:
    """A name alone is what the script exports, or has."""
    script = "export NCCL_DEBUG=INFO\nmpirun -np 8 -x NCCL_DEBUG -x CUDA_LAUNCH_BLOCKING=$A -x NCCL_IB_TC=106 "
    migration = of_script(f"{script}--x LD_LIBRARY_PATH python pretrain_gpt.py {FLAGS}\n", A="1")
    expected = {"NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_IB_TC": "106"}
    assert migration.values["launch.env"] == expected
    assert [each.flag for each in migration.accounts if "--x" in each.flag] == ["mpirun --x NCCL_DEBUG LD_LIBRARY_PATH"]
    assert migration.values["launch.gpus_per_node"] == 8


def test_evaluation_stays_where_its_data_have_to_be_written() -> None:
    migration = of_flags(
        "--valid-weighted-split-paths-path valid.txt --eval-interval 500 --eval-iters 5 --split 100,0,0"
    )
    assert (migration.values["evaluation.eval_interval"], migration.values["evaluation.eval_iters"]) == (500, 5)


def test_a_file_of_flags_that_are_added_one_after_another() -> None:
    words = FLAGS.split(" --data-path")
    script = f"ALL=()\nALL+=( {words[0]} )\nALL+=( --data-path{words[1]} --bf16 )\n"
    migration = of_script(script)
    assert migration.values["model.num_layers"] == 4
    assert [each.outcome for each in migration.accounts if each.flag == "--bf16"] == ["default"]
    assert "the file starts nothing: its flags are those of ALL" in migration.notes


def test_a_hybrid_by_its_flags_alone_and_a_prefix_language_model() -> None:
    hybrid = migrate_words([*FLAGS.split(), "--hybrid-override-pattern", "M-M*"], "flags")
    assert hybrid.values["model.architecture"] == "mamba"
    prefix = of_script(f"torchrun --nproc-per-node 2 pretrain_prefix_lm.py {FLAGS}\n")
    assert prefix.refused is not None
    assert "prefix language" in prefix.refused


def test_a_coefficient_without_a_balancing_loss() -> None:
    migration = of_flags("--num-experts 8 --moe-router-load-balancing-type none --moe-aux-loss-coeff 0.1")
    assert told(migration, "--moe-aux-loss-coeff") == [("no_effect", "there is no balancing loss")]
    assert "model.moe_aux_loss_coeff" not in migration.values


@pytest.mark.parametrize("name", ["GPTSentencePieceTokenizer", "Llama2Tokenizer", "SentencePieceTokenizer"])
def test_a_sentencepiece_tokenizer_comes_back_as_one_that_adds_no_tokens(name: str) -> None:
    flags = FLAGS.replace("--vocab-file v --merge-file m", f"--tokenizer-type {name} --tokenizer-model m.model")
    job = load_text(job_text(migrate_words(flags.split(), "flags"))).job
    words = to_megatron(job).words
    assert words[words.index("--tokenizer-type") + 1] == "GPTSentencePieceTokenizer"


def test_a_length_in_tokens_is_samples_of_both_sides_of_a_t5() -> None:
    model = {"architecture": "t5", "seq_length": 64, "decoder_seq_length": 32, "position_embedding_type": "relative"}
    length = {"train_iters": None, "lr_warmup_iters": None, "train_tokens": 9600}
    job = tiny_job("t5", model={**model, "vocab_size": 320}, schedule=length, batch={"global_batch_size": 16})
    words = to_megatron(job).words
    assert words[words.index("--train-samples") + 1] == str(112), "whole steps of 16 that hold 9600 / (64 + 32)"
