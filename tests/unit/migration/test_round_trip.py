"""A job rendered as Megatron-LM's flags and read back is the same job, but for what the rendering lists."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.refused import refused
from support.shipped import SHIPPED

from orchestrator.cli.jobs.render import megatron_script
from orchestrator.errors import SpecError
from orchestrator.migration.from_megatron import migrate_script, migrate_words
from orchestrator.migration.report import Migration
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job, load_text
from orchestrator.spec.schema.shape import leaf_paths

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
WORDS = st.text(st.sampled_from("abcXYZ019._/- 'é$\"\\"), min_size=1, max_size=12)
PATHS = st.tuples(st.sampled_from(("data/", "-", "--x")), WORDS).map(lambda parts: parts[0] + parts[1].strip())
TINY = {
    "name": "job",
    "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "seq_length": 32},
    "batch": {},
    "optimizer": {"lr": 1e-3},
    "schedule": {"train_iters": 10},
}
COUNTS = st.integers(1, 10_000)
RATES = st.floats(1e-8, 1.0)


def _maybe(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


FRACTIONS = st.sampled_from((0.0, 0.1, 0.15, 0.5))
MODELS = _maybe(
    {
        "ffn_hidden_size": st.sampled_from((256, 344, 512)),
        "num_query_groups": st.sampled_from((1, 2, 4)),
        "kv_channels": st.sampled_from((16, 32, 64)),
        "max_position_embeddings": st.sampled_from((64, 128, 256)),
        "vocab_size": st.sampled_from((261, 300, 50257)),
        "make_vocab_size_divisible_by": st.sampled_from((1, 64, 128)),
        "position_embedding_type": st.sampled_from(("rope", "learned_absolute", "alibi", "none")),
        "rotary_percent": st.sampled_from((0.5, 1.0)),
        "rotary_base": st.sampled_from((10000, 500000, 999999.5)),
        "normalization": st.sampled_from(("LayerNorm", "RMSNorm")),
        "norm_epsilon": st.sampled_from((1e-5, 1e-6)),
        "activation": st.sampled_from(("gelu", "gelu_tanh", "squared_relu", "swiglu", "geglu")),
        "apply_layernorm_1p": st.booleans(),
        "sliding_window": st.sampled_from((1, 48)),
        "rope_scaling": st.sampled_from(
            (
                {"type": "linear", "factor": 2},
                {"type": "linear", "factor": 2.5},
                {"type": "llama3", "factor": 32, "original_max_position_embeddings": 8192},
                {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64},
            )
        ),
        "add_bias_linear": st.booleans(),
        "add_qkv_bias": st.booleans(),
        "qk_layernorm": st.booleans(),
        "untie_embeddings_and_output_weights": st.booleans(),
        "hidden_dropout": FRACTIONS,
        "attention_dropout": FRACTIONS,
        "init_method_std": RATES,
    }
)
PARALLELISM = _maybe(
    {
        "tensor_model_parallel_size": st.sampled_from((1, 2)),
        "pipeline_model_parallel_size": st.sampled_from((1, 2)),
        "virtual_pipeline_model_parallel_size": st.sampled_from((1, 2)),
        "sequence_parallel": st.sampled_from((True, False, 1, 2)),
        "data_parallel_size": st.sampled_from((1, 2)),
        "use_distributed_optimizer": st.booleans(),
        "overlap_grad_reduce": st.booleans(),
        "overlap_param_gather": st.booleans(),
        "tp_comm_overlap": st.sampled_from((True, False, None)),
    }
)
BATCHES = st.one_of(
    st.fixed_dictionaries({"micro_batch_size": st.sampled_from((1, 2)), "global_batch_size": st.sampled_from((8, 16))}),
    st.fixed_dictionaries({"num_micro_batches": st.sampled_from((2, 4))}),
    st.fixed_dictionaries(
        {
            "global_batch_size": st.just(16),
            "rampup_batch_size": st.just({"start_global_batch_size": 8, "increment": 8, "samples": 100}),
        }
    ),
)
ENTRIES = st.fixed_dictionaries(
    {"path": PATHS}, optional={"weight": st.floats(0.01, 10.0), "text": st.just(["a.txt"]), "append_eod": st.just(True)}
)
BLENDS = st.lists(ENTRIES, min_size=1, max_size=3)
TOKENIZERS = st.one_of(
    st.just({"type": "byte_level"}),
    st.fixed_dictionaries({"type": st.just("gpt2_bpe"), "path": PATHS, "merges": PATHS}),
    st.fixed_dictionaries({"type": st.sampled_from(("huggingface", "sentencepiece", "wordpiece")), "path": PATHS}),
)
DATA = st.one_of(
    st.just({"random_tokens": True}),
    st.fixed_dictionaries(
        {"blend": BLENDS, "tokenizer": TOKENIZERS},
        optional={
            "validation": BLENDS,
            "test": BLENDS,
            "split": st.sampled_from(("969,30,1", "1,0,0", "90,10,0", "0.5,0.25,0.25")),
            "prepare": st.just("never"),
            "cache_dir": PATHS,
            "seed": st.sampled_from((1234, 7)),
            "num_workers": st.integers(0, 4),
            "reset_position_ids": st.booleans(),
            "eod_mask_loss": st.booleans(),
            "num_dataset_builder_threads": st.integers(1, 3),
        },
    ),
)
OPTIMIZER = {
    "min_lr": st.sampled_from((0.0, 1e-7)),
    "weight_decay": RATES,
    "apply_wd_to_qk_layernorm": st.booleans(),
    "decay_norms": st.booleans(),
    "decay_embeddings": st.booleans(),
    "clip_grad": st.sampled_from((0.0, 0.5, 1.0)),
}
ADAM = {
    "adam_beta1": st.sampled_from((0.9, 0.8)),
    "adam_beta2": st.sampled_from((0.95, 0.999)),
    "adam_eps": RATES,
    "decoupled_weight_decay": st.booleans(),
}
INCREASING = {
    "weight_decay_incr_style": st.sampled_from(("linear", "cosine")),
    "start_weight_decay": st.sampled_from((0.0, 0.01)),
    "end_weight_decay": st.sampled_from((0.01, 0.1)),
}
LR = {"lr": st.floats(1e-6, 1.0)}
SGD = {"sgd_momentum": st.sampled_from((0.0, 0.9, 0.95))}
MUON = {
    "muon_momentum": st.sampled_from((0.9, 0.95)),
    "muon_use_nesterov": st.booleans(),
    "muon_num_ns_steps": st.sampled_from((5, 10)),
    "muon_coefficient_type": st.sampled_from(("simple", "quintic")),
    "muon_scale_mode": st.sampled_from(("spectral", "unit_rms_norm", "shape_scaling")),
    "muon_extra_scale_factor": st.sampled_from((0.2, 1.0)),
    "muon_split_qkv": st.booleans(),
}
DECOUPLED = {"decoupled_lr": st.sampled_from((1e-5, 0.1)), "decoupled_min_lr": st.sampled_from((0.0, 1e-6))}
OPTIMIZERS = st.one_of(
    st.fixed_dictionaries(LR, optional={**OPTIMIZER, **ADAM}),
    st.fixed_dictionaries({**LR, **INCREASING}, optional=ADAM),
    st.fixed_dictionaries({**LR, **DECOUPLED}, optional=OPTIMIZER),
    st.fixed_dictionaries({**LR, "name": st.just("sgd")}, optional={**OPTIMIZER, **SGD}),
    st.fixed_dictionaries({**LR, "name": st.just("muon")}, optional={**OPTIMIZER, **ADAM, **MUON}),
)
WSD = st.just({}) | st.fixed_dictionaries(
    {
        "lr_decay_style": st.just("WSD"),
        "lr_wsd_decay_style": st.sampled_from(("exponential", "linear", "cosine", "minus_sqrt")),
    },
).flatmap(
    lambda style: st.sampled_from(
        (
            {**style, "lr_wsd_decay_iters": 0},
            {**style, "lr_wsd_decay_iters": 2},
            {**style, "lr_wsd_decay_samples": 3},
            {**style, "lr_wsd_decay_samples": 20},
        )
    )
)
SCHEDULES = st.tuples(
    st.sampled_from(("train_iters", "train_samples", "train_tokens")),
    COUNTS,
    _maybe(
        {
            "lr_decay_style": st.sampled_from(("constant", "linear", "cosine", "inverse-square-root")),
            "lr_decay_iters": COUNTS,
            "lr_decay_samples": COUNTS,
            "lr_warmup_iters": st.integers(0, 10),
            "lr_warmup_samples": st.integers(0, 10),
            "lr_warmup_fraction": FRACTIONS,
            "lr_warmup_init": st.sampled_from((0.0, 1e-8)),
        }
    ),
    WSD,
).map(lambda parts: {parts[0]: parts[1] + 100, **parts[2], **parts[3]})
PRECISIONS = st.one_of(
    _maybe({"dtype": st.sampled_from(("bf16", "fp32")), "grad_reduce_in_fp32": st.booleans()}),
    st.fixed_dictionaries(
        {"dtype": st.just("fp16")},
        optional={
            "grad_reduce_in_fp32": st.booleans(),
            "loss_scale": st.sampled_from((1024.0, 0.5)),
            "initial_loss_scale": st.sampled_from((65536.0, 2.0**32)),
            "min_loss_scale": st.sampled_from((1.0, 2.0)),
            "loss_scale_window": st.sampled_from((100, 1000)),
            "hysteresis": st.sampled_from((1, 2)),
        },
    ),
    st.fixed_dictionaries(
        {
            "fp8": _maybe(
                {
                    "recipe": st.sampled_from(("delayed", "tensorwise", "blockwise", "mxfp8")),
                    "format": st.sampled_from(("hybrid", "e4m3")),
                    "margin": st.sampled_from((0, 2)),
                    "amax_history_len": st.sampled_from((1, 16)),
                    "amax_compute_algo": st.sampled_from(("max", "most_recent")),
                    "num_layers_at_start_in_bf16": st.sampled_from((0, 1, 2)),
                    "num_layers_at_end_in_bf16": st.sampled_from((0, 1)),
                }
            )
        }
    ),
    st.fixed_dictionaries({"fp4": _maybe({"num_layers_at_end_in_bf16": st.sampled_from((0, 1))})}),
)
CHECKPOINTS = _maybe(
    {
        "save_interval": st.sampled_from((10, 50)),
        "save_seconds": st.just(60),
        "keep_last": st.sampled_from((1, 3)),
        "keep_every": st.sampled_from((10, 50, 100, 75)),
        "async_save": st.booleans(),
    }
)
EVALUATIONS = _maybe(
    {
        "eval_interval": st.sampled_from((10, 1000)),
        "eval_iters": st.sampled_from((10, 100, 7)),
        "eval_at_start": st.booleans(),
        "eval_at_end": st.booleans(),
    }
)
LAUNCHES = _maybe(
    {
        "nodes": st.sampled_from((1, 2)),
        "gpus_per_node": st.sampled_from((1, 2, 4, 8)),
        "runs_dir": PATHS,
        "env": st.dictionaries(st.sampled_from(("NCCL_DEBUG", "MY_SWITCH", "HF_HOME")), WORDS, max_size=2),
        "time": st.just(3600),
        "partition": st.just("gpu"),
        "snapshot": st.just(True),
    }
)
RUNTIMES = _maybe(
    {
        "device": st.sampled_from(("auto", "cuda")),
        "layers": st.sampled_from(("auto", "torch", "transformer_engine")),
        "attention_backend": st.sampled_from(("auto", "fused")),
        "seed": st.sampled_from((1234, 7)),
        "deterministic": st.booleans(),
        "threads_per_rank": st.just(2),
        "max_bad_steps": st.just(3),
        "hang_timeout": st.sampled_from((1800, 600, 90)),
    }
) | st.sampled_from(
    (
        {"cpu_offloading_num_layers": 2},
        {"recompute_granularity": "selective"},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
    )
)
TRACKING = _maybe(
    {
        "mlflow": st.booleans(),
        "experiment": WORDS,
        "log_interval": st.sampled_from((1, 10, 100)),
        "tensorboard": st.booleans(),
        "wandb": _maybe({"project": WORDS, "entity": WORDS, "mode": st.sampled_from(("online", "offline"))}),
    }
)
SECTIONS = {
    "parallelism": PARALLELISM,
    "precision": PRECISIONS,
    "checkpoint": CHECKPOINTS,
    "evaluation": EVALUATIONS,
    "launch": LAUNCHES,
    "runtime": RUNTIMES,
    "tracking": TRACKING,
}


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    sizes = {"num_layers": 8, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 64}
    model = {**sizes, **draw(MODELS)}
    rotated = model.get("position_embedding_type", "rope") == "rope"
    if not rotated:
        model.pop("rope_scaling", None)
        model.pop("rotary_percent", None)
    data = draw(DATA)
    of_norms, normed = "apply_wd_to_qk_layernorm", model.get("qk_layernorm")
    if data.get("random_tokens"):
        model.setdefault("vocab_size", 1000)
    document = {
        "name": "job",
        "model": model,
        "batch": draw(BATCHES),
        "data": data,
        "optimizer": {name: value for name, value in draw(OPTIMIZERS).items() if name != of_norms or normed},
        "schedule": draw(SCHEDULES),
    }
    for name in draw(st.sets(st.sampled_from(sorted(SECTIONS)), max_size=3)):
        document[name] = draw(SECTIONS[name])
    try:
        return JobSpec.model_validate(document)
    except SpecError:
        assume(False)
        raise


def value_at(job: JobSpec, path: str) -> Any:
    value: Any = job
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def differences(job: JobSpec, other: JobSpec) -> dict[str, tuple[Any, Any]]:
    return {
        path: (value_at(job, path), value_at(other, path))
        for path in leaf_paths()
        if value_at(job, path) != value_at(other, path)
    }


def written(migration: Migration) -> JobSpec:
    assert migration.missing == {}
    assert migration.of("not_known") == migration.of("no_counterpart") == migration.of("not_supported") == []
    return load_text(job_text(migration)).job


@given(jobs())
@settings(max_examples=examples(80), deadline=None)
def test_a_script_is_read_back_as_the_job(job: JobSpec) -> None:
    script, command = megatron_script(job)
    listed = {each.path for each in (*command.unsaid, *command.otherwise)} | {"name"}
    back = written(migrate_script(script, "job.sh"))
    different = {
        path: pair
        for path, pair in differences(job, back).items()
        if not any(path == name or path.startswith(f"{name}.") for name in listed)
    }
    assert different == {}


@given(jobs())
@settings(max_examples=examples(25), deadline=None)
def test_the_words_say_what_the_script_says(job: JobSpec) -> None:
    script, command = megatron_script(job)
    by_script = migrate_script(script, "job.sh")
    by_words = migrate_words(["torchrun", "pretrain_gpt.py", *command.words], "the line")
    for path, value in by_words.values.items():
        if not path.startswith("launch.") and path != "name":
            assert by_script.values[path] == value


@pytest.mark.parametrize("path", SHIPPED.values(), ids=SHIPPED)
def test_shipped_jobs(path: Path) -> None:
    job = load_job([path]).job
    if job.task is not None:
        with refused("task_not_in_megatron", f"tasks/main.py --task {job.task.name.upper()}"):
            megatron_script(job)
        return
    if job.model.vision is not None:
        with refused("images_not_in_megatron", "examples/multimodal/train.py"):
            megatron_script(job)
        return
    script, command = megatron_script(job)
    back = written(migrate_script(script, "job.sh"))
    listed = {each.path for each in (*command.unsaid, *command.otherwise)}
    left = {each for each in differences(job, back) if each not in listed and each.rpartition(".")[0] not in listed}
    assert left <= {"name"}


@pytest.mark.parametrize("name", ["--a", "-x", "-é", "-/", "-1", "-", "-a b", "=", "-a=b"])
def test_a_value_with_a_dash_in_front_is_no_flag(name: str) -> None:
    """Neither to argparse, which reads Megatron-LM's flags, nor read back."""
    entries = [{"path": name}, {"path": f"{name}2", "weight": 2}]
    document = {**TINY, "data": {"blend": entries, "cache_dir": name}, "tracking": {"wandb": {"project": name}}}
    job = JobSpec.model_validate(document)
    script, command = megatron_script(job)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag, values in (("wandb-project", None), ("data-cache-path", None), ("data-path", "*"), ("split", None)):
        parser.add_argument(f"--{flag}", nargs=values)
    taken, _ = parser.parse_known_args(command.words)
    assert (taken.wandb_project, taken.data_cache_path) == (name, name)
    paths = [f"./{each['path']}" if name.startswith("-") else each["path"] for each in entries]
    assert taken.data_path == ["1.0", paths[0], "2.0", paths[1]]
    back = written(migrate_script(script, "job.sh"))
    assert (back.tracking.wandb.project, back.data.cache_dir) == (name, name)
    assert [entry.path for entry in back.data.blend] == paths
    assert ("data.blend" in {each.path for each in command.otherwise}) is name.startswith("-")


def test_bash_starts_what_the_flags_say(tmp_path: Path) -> None:
    """The script as bash runs it, with a torchrun that only tells what it is given."""
    (tmp_path / "torchrun").write_text('#!/bin/bash\nprintf \'%s\\0\' "$NCCL_DEBUG" "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    job = load_job([SHIPPED["llama3-8b"]], ["launch.env.NCCL_DEBUG=it's $(odd)", "data.cache_dir=/a b/$c"]).job
    script, command = megatron_script(job)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    exported, *words = ran.stdout.split("\0")[:-1]
    assert exported == "it's $(odd)"
    start = ["--nproc-per-node", "8", "--nnodes", "1", "pretrain_gpt.py"]
    assert words == [*start, *command.words]


def test_the_script_is_exactly_the_golden_one() -> None:
    """After a wanted change: write the new text to tests/golden and read the difference."""
    job = load_job([SHIPPED["llama3-8b"]], ["launch.nodes=2", "launch.env={NCCL_DEBUG: WARN}"]).job
    assert megatron_script(job)[0] == (GOLDEN / "megatron-lm-two-machines.sh").read_text()


def test_what_megatron_refuses_to_go_without_is_written() -> None:
    """Its argument parser, and the checks behind it, want each of these of every GPT."""
    job = load_job([SHIPPED["llama3-8b"]], ["batch.micro_batch_size=1"]).job
    needed = {"num-layers", "hidden-size", "num-attention-heads", "seq-length", "max-position-embeddings"}
    needed |= {"micro-batch-size", "lr", "tokenizer-type"}
    assert {f"--{name}" for name in needed} <= set(megatron_script(job)[1].words)


def test_every_word_is_quoted() -> None:
    document = {**TINY, "data": {"blend": [{"path": "data/$(touch x) 'y'"}]}}
    script, command = megatron_script(JobSpec.model_validate(document))
    assert shlex.quote("data/$(touch x) 'y'") in script
    assert "data/$(touch x) 'y'" in command.words
