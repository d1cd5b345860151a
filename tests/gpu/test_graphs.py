"""Passes as a CUDA graph train what passes do whose kernels the host starts one by one, to the bit, and faster."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks, wait_until
from support.fixtures import inject, real_sentences
from support.measured import Measured, Meter, asked_of, largest_differences, needs_layers, padded_vocab
from support.training import events, four_layer_job, layout, losses, make_run, values
from support.uneven import shorter_batches

from orchestrator.planning.memory import estimate_memory
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

__all__ = ["inject", "real_sentences"]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

STEPS = 8
GPT: dict[str, Any] = {
    **{"hidden_size": 512, "num_attention_heads": 8, "num_query_groups": 4, "seq_length": 512, "vocab_size": 50000},
    "init_method_std": 0.05,  # so large that what the layers do shows in the losses
}
LLAMA = {**GPT, "normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False}
DROPPING = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
BERT: dict[str, Any] = {
    **{"architecture": "bert", "hidden_size": 256, "num_attention_heads": 4, "seq_length": 256, "vocab_size": 300},
    **{"position_embedding_type": "learned_absolute", **DROPPING},
}
T5: dict[str, Any] = {
    **{"architecture": "t5", "num_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 320},
    **{"seq_length": 256, "decoder_seq_length": 128, "position_embedding_type": "relative", **DROPPING},
}
IMAGES: dict[str, Any] = {
    **{"image_size": 112, "patch_size": 14, "num_layers": 2, "hidden_size": 256, "num_attention_heads": 4},
    "images_per_sequence": 2,
}
GEMMA: dict[str, Any] = {
    **{**LLAMA, "hidden_size": 640, "num_attention_heads": 5, "num_query_groups": 1, "activation": "geglu"},
    **{"apply_layernorm_1p": True, "transformer_block_type": "sandwich_ln", "qk_layernorm": True},
}
POOLED = {**IMAGES, "type": "gemma3", "pooled_tokens": 16, "activation": "gelu_tanh"}
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
TE, TORCH = "transformer_engine", "torch"
CASES: dict[str, dict[str, Any]] = {
    "gpt": {"model": GPT},
    "llama": {"model": LLAMA},
    "dropout": {"model": {**GPT, **DROPPING, "position_embedding_type": "learned_absolute"}},
    "fp16": {"model": GPT, "precision": {"dtype": "fp16", "initial_loss_scale": 2.0**24}},
    "fp32": {"model": GPT, "precision": {"dtype": "fp32"}},
    "torch": {"model": GPT, "runtime": {"layers": TORCH}},
    "torch-dropout": {"model": {**LLAMA, "hidden_dropout": 0.1}, "runtime": {"layers": TORCH}},
    "joined-loss": {"model": LLAMA, "runtime": {"fused_linear_cross_entropy": True}},
    "recomputed": {"model": LLAMA, "runtime": RECOMPUTED},
    "attention-recomputed": {"model": GPT, "runtime": {"recompute_granularity": "selective"}},
    "lora": {"model": {**LLAMA, "lora": {"rank": 8, "lora_dropout": 0.1}}, "runtime": {"layers": TORCH}},
    "ramp": {"model": GPT, "batch": {"rampup_batch_size": [2, 2, 16]}},
    "replicas": {"model": GPT, "parallelism": layout(dp=2), "batch": {"global_batch_size": 12}},
    "replicas-whole": {
        "model": GPT,
        "parallelism": layout(dp=2, use_distributed_optimizer=False),
        "batch": {"global_batch_size": 12},
    },
    "gemma": {"model": GEMMA},
    "images": {"model": {**LLAMA, "vision": IMAGES}},
    "pooled-images": {"model": {**GEMMA, "vision": POOLED}},
    "pooled-images-recomputed": {"model": {**GEMMA, "vision": POOLED}, "runtime": RECOMPUTED},
    "images-torch": {"model": {**LLAMA, "vision": IMAGES}, "runtime": {"layers": TORCH}},
    "bert": {"model": BERT},
    "bert-torch": {"model": BERT, "runtime": {"layers": TORCH}},
    "fp8-delayed": {"model": GPT, "precision": {"dtype": "bf16", "fp8": {"recipe": "delayed"}}},
    "fp8-tensorwise": {"model": LLAMA, "precision": {"dtype": "bf16", "fp8": {"recipe": "tensorwise"}}},
    "fp8-blockwise": {"model": LLAMA, "precision": {"dtype": "bf16", "fp8": {"recipe": "blockwise"}}},
    "fp8-recomputed": {
        "model": LLAMA,
        "precision": {"dtype": "bf16", "fp8": {"recipe": "delayed"}},
        "runtime": RECOMPUTED,
    },
    "fp8-replicas": {
        "model": GPT,
        "precision": {"dtype": "bf16", "fp8": {"recipe": "tensorwise"}},
        "parallelism": layout(dp=2),
        "batch": {"global_batch_size": 12},
    },
    "t5": {"model": T5},
    "t5-torch": {"model": T5, "runtime": {"layers": TORCH}},
}
FULL: dict[str, dict[str, Any]] = {
    "345m": {"preset": "gpt-345m", "micro": 8},
    "345m-1x1": {"preset": "gpt-345m", "micro": 1, "global": 1},
    "345m-torch": {"preset": "gpt-345m", "micro": 8, "layers": TORCH},
    "bert-345m": {"preset": "bert-345m", "micro": 8},
    "t5-220m": {"preset": "t5-220m", "micro": 8},
    "345m-fp8": {"preset": "gpt-345m", "micro": 8, "precision": {"fp8": {}}},
    "1.7b": {"preset": "gpt-1.7b", "micro": 1, "steps": 14},
    "1.7b-fp8": {"preset": "gpt-1.7b", "micro": 1, "steps": 14, "precision": {"fp8": {}}},
    "1.7b-large": {"preset": "gpt-1.7b", "micro": 4, "global": 4, "steps": 14},
}


def small_job(case: str, *, captured: bool | None, text: str = "", **sections: Any) -> JobSpec:
    """Three micro-batches a step: the third step is the first that is captured, or nearly."""
    given = CASES[case]
    architecture = given["model"].get("architecture", "gpt")
    sentences = {
        **{"blend": [{"path": text}], "random_tokens": False, "split": "90,10,0"},
        "tokenizer": {"vocab_extra_ids": 20},
    }
    return four_layer_job(
        f"{case}-{'captured' if captured else 'plain'}",
        model=given["model"],
        batch={"micro_batch_size": 2, "global_batch_size": 6, **given.get("batch", {})},
        data=sentences if architecture != "gpt" else {},
        parallelism=given.get("parallelism", {}),
        precision=given.get("precision", {"dtype": "bf16"}),
        runtime={"layers": TE, "deterministic": True, "cuda_graphs": captured, **given.get("runtime", {})},
        **{"schedule": {"train_iters": STEPS}, **sections},
    )


def full_job(case: str, *, captured: bool) -> JobSpec:
    given = FULL[case]
    micro = given["micro"]
    written = {
        "name": f"{case}-{'captured' if captured else 'plain'}",
        "model": {"preset": given["preset"]},
        "batch": {"micro_batch_size": micro, "global_batch_size": given.get("global", 4 * micro)},
        "data": {"random_tokens": True},
        "runtime": {"layers": given.get("layers", TE), "cuda_graphs": captured},
        "schedule": {"train_iters": given.get("steps", 20)},
        "optimizer": {"lr": 1e-4},
        "precision": given.get("precision", {}),
    }
    return load_text(json.dumps(written)).job


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file; `text` is the prefix of a data set of sentences."""
    small = [small_job(case, captured=captured, text=text) for case in CASES for captured in (False, True)]
    return [*small, *(full_job(case, captured=captured) for case in FULL for captured in (False, True))]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, trainer: Meter, real_sentences: str) -> dict[str, Measured]:
    """The cases that this session asks for, by the jobs' names."""
    asked = sorted(case for (case,) in asked_of(request, "case") if case in CASES)
    return trainer.measure_all(
        small_job(case, captured=captured, text=real_sentences) for case in asked for captured in (False, True)
    )


@pytest.mark.parametrize("case", CASES)
def test_it_trains_the_same(case: str, request: pytest.FixtureRequest) -> None:
    needs_layers(small_job(case, captured=True).runtime.layers)
    trained: dict[str, Measured] = request.getfixturevalue("trained")
    plain, captured = (trained[small_job(case, captured=each).name] for each in (False, True))
    for each in (plain, captured):
        assert each.outcome == "measured", each.message
    of_losses, of_norms = largest_differences(plain, captured)
    print(f"\nRESULT captured {case} against started one by one: losses {of_losses:.1e} norms {of_norms:.1e}")
    assert len(set(plain.losses)) > STEPS // 2
    assert captured.losses == plain.losses
    assert captured.grad_norms == plain.grad_norms


@pytest.mark.parametrize("size", FULL)
def test_it_is_faster(size: str, trainer: Meter) -> None:
    needs_layers(full_job(size, captured=True).runtime.layers)
    found = trainer.measure_all(full_job(size, captured=captured) for captured in (False, True))
    plain, captured = (found[full_job(size, captured=each).name] for each in (False, True))
    for each in (plain, captured):
        assert each.outcome == "measured", each.message
    of_losses, _ = largest_differences(plain, captured)
    for name, each in (("plain", plain), ("captured", captured)):
        low, high = (1e3 * seconds for seconds in each.spread)
        print(
            f"\nRESULT {size} {name}: {1e3 * each.interval_seconds:.1f} ms ({low:.1f} to {high:.1f}), "
            f"peak {max(each.peak_bytes) / 2**30:.2f} reserved {max(each.reserved_bytes) / 2**30:.2f} GiB, "
            f"losses {of_losses:.1e} apart"
        )
    job = full_job(size, captured=True)
    predicted = estimate_memory(job, padded_vocab(job), job.runtime.layers)
    print(
        f"\nRESULT {size}: on the device {max(captured.used_bytes) / 2**30:.2f} of {predicted.device_bytes / 2**30:.2f}"
    )
    assert max(captured.used_bytes) < predicted.device_bytes
    assert captured.interval_seconds < 1.02 * plain.interval_seconds


@pytest.mark.parametrize("case", ["dropout", "fp8-delayed"])
def test_a_whole_run(case: str, ranks: Ranks, tmp_path: Path) -> None:
    """With evaluations and saves; killed and resumed it learns the same, to the bit. It is captured without being asked
    for, since so small a model waits for the host.
    """
    needs_layers(TE)
    evaluation, checkpoint = {"eval_interval": 20, "eval_iters": 2}, {"save_interval": 10}
    schedule = {"train_iters": 40}

    def job(name: str, *, captured: bool | None = None) -> JobSpec:
        sections = {"evaluation": evaluation, "checkpoint": checkpoint, "schedule": schedule}
        return small_job(case, captured=captured, **sections).model_copy(update={"name": name})

    plain_job, captured_job, disturbed_job = job("plain", captured=False), job("captured"), job("disturbed")
    plain = ranks.must_train(make_run(tmp_path, plain_job), plain_job)
    run = ranks.must_train(make_run(tmp_path, captured_job), captured_job)
    assert [event["cuda_graphs"] for event in events(plain, "started") + events(run, "started")] == [False, True]
    assert losses(run) == losses(plain)
    assert values(run, "validation/loss") == values(plain, "validation/loss")

    disturbed = make_run(tmp_path, disturbed_job)
    started = ranks.start(disturbed, disturbed_job)
    wait_until(lambda: committed(disturbed) or started.poll() is not None, "a checkpoint")
    os.kill(started.ranks[0], signal.SIGKILL)
    assert started.wait() == 1, "a rank was killed before the end"
    ranks.must_train(disturbed, disturbed_job, launch_id="second")
    assert losses(disturbed) == losses(run)


def test_fp8_of_micro_batches_of_another_shape_after_evaluations(
    ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path
) -> None:
    """What is computed as it comes multiplies by the FP8 that the graph has."""
    needs_layers(TE)
    shorter = inject(shorter_batches(256))
    runs = []
    for captured in (False, True):
        job = small_job("fp8-delayed", captured=captured, evaluation={"eval_interval": 2, "eval_iters": 1})
        runs.append(ranks.must_train(make_run(tmp_path, job), job, inject=shorter))
    assert len(set(losses(runs[0]).values())) > STEPS // 2
    assert losses(runs[1]) == losses(runs[0])
    assert values(runs[1], "validation/loss") == values(runs[0], "validation/loss")
