"""Takes each patch of the CPU shim away in turn, runs tiny jobs, and prints what broke as JSON: {patch: error or null}.

A program of its own: the shim changes torch for the whole process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core.optimizer import clip_grads
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from support.training import layout, make_run, tiny_job

from orchestrator.inference.generation.decoder import DecoderRunner
from orchestrator.inference.generation.decoding import Decoding
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.callbacks.evaluation import evaluate
from orchestrator.runtime.loop import train_step
from orchestrator.runtime.processes import cpu_shim
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import stop_process_groups
from orchestrator.runtime.records.start_clock import StartClock
from orchestrator.runtime.startup import open_session
from orchestrator.spec.generation import Generation

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")
MODEL = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "seq_length": 8,
    "vocab_size": 50,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}
EXPERTS = {"activation": "swiglu", "add_bias_linear": False, "num_experts": 2, "moe_aux_loss_coeff": 0.1}
COMMON: dict[str, Any] = {
    "schedule": {"train_iters": 2, "lr_warmup_iters": 1},
    "evaluation": {"eval_interval": 1, "eval_iters": 1},
    "batch": {"micro_batch_size": 2, "global_batch_size": 2},
}
JOBS = [
    tiny_job("fp32", model={**MODEL, **EXPERTS, "position_embedding_type": "learned_absolute"}, **COMMON),
    tiny_job(
        "bf16",
        model={**MODEL, "normalization": "RMSNorm", "activation": "swiglu", "num_query_groups": 1},
        parallelism=layout(use_distributed_optimizer=False),
        precision={"dtype": "bf16"},
        runtime={"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        **COMMON,
    ),
    tiny_job("bf16-sharded", model=MODEL, precision={"dtype": "bf16"}, **COMMON),
]
OWNERS: dict[str, Any] = {
    "torch": torch,
    "torch.cuda": torch.cuda,
    "torch.Tensor": torch.Tensor,
    "torch.nn.Module": torch.nn.Module,
    "megatron.random": megatron_random,
    "megatron.dispatcher": MoEAlltoAllTokenDispatcher,
    "megatron.clip_grads": clip_grads,
}
OF_A_GPU = ("multi_tensor_applier", "l2_norm_impl")
"""What megatron-core takes from Transformer Engine or apex where one of them is installed."""


def exercise() -> Iterator[float]:
    """Train with dropout, evaluate, save, resume and generate; the losses, as they come."""
    for job in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            run = make_run(Path(folder), job)
            for _ in range(2):
                with contextlib.ExitStack() as closing:
                    closing.callback(stop_process_groups)
                    session = open_session(
                        run, job, CPU, "probe", from_scratch=False, closing=closing, clock=StartClock()
                    )
                    session.begin_batches()
                    _, loss = train_step(session)
                    assert loss is not None
                    yield float(loss[0, 0])
                    evaluate(session)
                    session.checkpointer.begin(session.state)
                    assert session.checkpointer.finish(), run.events()[-1]
                    module, words = session.network.modules[0].eval(), job.model.vocab_size or 0
                    network = Network(module, job, words, session.processes.ranks, session.processes.groups, CPU)
                    drawn = Generation(max_new_tokens=3, temperature=1.0, top_k=5, seed=1)
                    asked = [Request(0, [1, 2], drawn)]
                    assert len(list(Decoding(network, DecoderRunner(network), None).steps(asked, ()))) == 3


def broken_by(owner: Any, name: str, original: Any, expected: list[float]) -> str | None:
    """What fails, or comes out otherwise, when a patch is taken back; None when nothing does."""
    patch = vars(owner)[name]
    put_back(owner, name, original)
    try:
        if any(loss != wanted for loss, wanted in zip(exercise(), expected, strict=True)):
            return "other losses"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        setattr(owner, name, patch)
        # What failed half way may have left its groups behind.
        if torch.distributed.is_initialized():
            stop_process_groups()
    return None


MISSING = object()


def put_back(owner: Any, name: str, original: Any) -> None:
    """The attribute as it was, or inherited again."""
    if original is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def kernel_of_a_gpu(*arguments: Any) -> Any:
    """In place of Transformer Engine's, as if it were installed."""
    raise RuntimeError("a kernel of the GPU was given memory of the CPU")


def main() -> None:
    logging.disable(logging.CRITICAL)
    vars(clip_grads).update(dict.fromkeys(OF_A_GPU, kernel_of_a_gpu))
    before = {place: dict(vars(owner)) for place, owner in OWNERS.items()}
    cpu_shim.install()
    megatron_compat.apply(CPU)
    # Opening a session applies it again, and would put back what was taken away.
    megatron_compat.apply = lambda device: None
    with contextlib.redirect_stdout(sys.stderr):
        print(json.dumps(patches_needed(before)), file=sys.__stdout__)


def patches_needed(before: dict[str, dict[str, Any]]) -> dict[str, str | None]:
    """By patch, found by comparing with what the owners held before: what its absence breaks."""
    expected = list(exercise())
    found = {}
    for place, owner in OWNERS.items():
        for name, value in dict(vars(owner)).items():
            original = before[place].get(name, MISSING)
            is_patch = callable(value) or isinstance(value, torch.device)
            if value is not original and not name.startswith("__") and is_patch:
                found[f"{place}.{name}"] = broken_by(owner, name, original, expected)
    return found


if __name__ == "__main__":
    main()
