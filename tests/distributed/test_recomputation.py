"""What is recomputed in the backward pass has the losses and gradients of what was kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.mamba_stub import INSTALL
from support.training import layout, losses, make_run, tiny_job, values

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains on real ranks")]

MODEL = {
    "num_layers": 4,
    "hidden_size": 32,
    "seq_length": 16,
    "num_query_groups": 2,
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "add_bias_linear": False,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}
SIZES: dict[str, Any] = {
    "batch": {"micro_batch_size": 1, "global_batch_size": 2},
    "schedule": {"train_iters": 1, "lr_warmup_iters": 0},
}


def full(method: str, layers: int, **more: Any) -> dict[str, Any]:
    granularity = {"recompute_granularity": "full", "recompute_method": method}
    return {**granularity, "recompute_num_layers": layers, **more}


def selective(*modules: str) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": list(modules)}


VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "layernorm": selective("layernorm"),
    "mlp": selective("mlp"),
    "all-modules": selective("core_attn", "layernorm", "mlp"),
    "uniform-1": full("uniform", 1),
    "uniform-2": full("uniform", 2),
    "block-2": full("block", 2),
}
EXPERTS: dict[str, Any] = {
    **{"num_experts": 4, "moe_ffn_hidden_size": 48, "moe_layer_freq": 2, "moe_aux_loss_coeff": 0.1},
    **{"moe_shared_expert_intermediate_size": 32, "moe_z_loss_coeff": 0.01},
}
HYBRID: dict[str, Any] = {
    **{"architecture": "mamba", "hybrid_override_pattern": "ME*-", "mamba_state_dim": 8, "mamba_head_dim": 8},
    **{"mamba_num_groups": 2, "activation": "squared_relu", **EXPERTS, "moe_layer_freq": 1},
}
VARIANTS_OF_EXPERTS: dict[str, dict[str, Any]] = {
    "none": {},
    "moe": selective("moe"),
    "moe-mlp": selective("moe", "mlp"),
    "layernorm": selective("layernorm"),
    "all-modules": selective("core_attn", "layernorm", "mlp", "moe"),
}
VARIANTS_OF_HYBRIDS = {**VARIANTS, **VARIANTS_OF_EXPERTS}
COMPARED = """
import contextlib, json, os
import torch
from pathlib import Path
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime import __main__ as program, megatron_compat
from orchestrator.runtime.processes.process_groups import stop_process_groups
from orchestrator.runtime.records.start_clock import StartClock
from orchestrator.runtime.startup import open_session
from orchestrator.runtime.forward_backward import run_micro_batches
from orchestrator.spec.loading import load_resolved

megatron_compat.megatron_random.load_inline = None  # megatron-core 0.19 would compile an extension with it

def step(folder):
    job = load_resolved(folder / "job.json")
    with contextlib.ExitStack() as closing:
        closing.callback(stop_process_groups)
        session = open_session(RunDir(folder), job, device, "probe", False, closing, StartClock())
        session.begin_batches()
        for chunk in session.network.chunks:
            chunk.zero_grad_buffer()
        loss = run_micro_batches(
            session.network.step, session.network.chunks, session.batches.iterators(),
            num_micro_batches=job.num_micro_batches,
            micro_batch_size=job.batch.micro_batch_size, seq_length=job.model.seq_length, forward_only=False,
        )
        gradients = torch.cat([buffer.grad_data for buffer in session.network.chunks[0].buffers])
        assert gradients.count_nonzero() > 0.9 * gradients.numel()
        return loss, gradients

device = program.select_device("cpu", threads=1)
program.select_device = lambda *chosen, **options: device  # torch is patched once
address = os.environ.pop("MASTER_ADDR")
loss, gradients = step(Path("FOLDER/none"))
found = {}
for folder in {*Path("FOLDER").iterdir()} - {Path("FOLDER/none")}:
    again, others = step(folder)
    difference = (others - gradients).abs().max() / gradients.abs().max()
    found[folder.name] = [bool((again == loss).all()), difference.item()]
Path("FOLDER.json").write_text(json.dumps(found))
os.environ["MASTER_ADDR"] = address
"""


def recomputing(name: str, runtime: dict[str, Any], more: dict[str, Any] | None = None, **parallelism: Any) -> JobSpec:
    model = {**MODEL, **(more or {})}
    return tiny_job(
        name, model=model, runtime={"layers": "torch", **runtime}, parallelism=layout(**parallelism), **SIZES
    )


@pytest.mark.parametrize(
    ("variants", "model"),
    [(VARIANTS, {}), (VARIANTS_OF_EXPERTS, EXPERTS), (VARIANTS_OF_HYBRIDS, HYBRID)],
    ids=["dense", "experts", "hybrid"],
)
def test_losses_and_gradients_are_those_without(
    ranks: Ranks, tmp_path: Path, variants: dict[str, dict[str, Any]], model: dict[str, Any]
) -> None:
    """With dropout, whose masks have to be drawn again, with every other layer's experts, and in a hybrid."""
    folder = tmp_path / "variants"
    for name, runtime in variants.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "job.json").write_text(dump_resolved(recomputing(name, runtime, model)))
    code = tmp_path / "compared.py"
    code.write_text((INSTALL if model is HYBRID else "") + COMPARED.replace("FOLDER", str(folder)))
    last = recomputing("last", {})
    ranks.must_train(make_run(tmp_path, last), last, inject=code)
    found = json.loads(folder.with_suffix(".json").read_text())
    assert {"none", *found} == variants.keys()
    assert {name for name, (same_loss, _) in found.items() if not same_loss} == set()
    # A norm that is run for its output alone is another kernel than the one that is differentiated: the last bit.
    norms = {"layernorm", "all-modules"}
    assert {name for name, (_, difference) in found.items() if difference > (1e-6 if name in norms else 0.0)} == set()


def test_what_is_recomputed_from_is_shared_out(ranks: Ranks, tmp_path: Path) -> None:
    plain = recomputing("plain", {}, tp=2)
    shared = recomputing("shared", full("uniform", 1, distribute_saved_activations=True), tp=2)
    one, other = (ranks.must_train(make_run(tmp_path, each), each) for each in (plain, shared))
    assert losses(one) == losses(other)
    assert values(one, "train/grad_norm") == values(other, "train/grad_norm")
