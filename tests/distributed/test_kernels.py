"""Each fused kernel that a CPU can run gives the values and gradients of the operations that it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Ranks
from support.training import make_run, tiny_job

pytestmark = [pytest.mark.distributed, pytest.mark.slow("runs in a rank")]

COMPARED = """
import json
import types
import torch
from megatron.core.fusions import fused_bias_dropout, fused_bias_geglu, fused_bias_gelu, fused_bias_swiglu
from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from orchestrator.runtime import startup
from orchestrator.runtime.processes import process_groups
from orchestrator.runtime.layers import torch_layers
from orchestrator.runtime.layers.normalization.norms import Norm
from torch.nn import functional as F

def differ(fused, plain, *shapes):
    torch.manual_seed(1)
    values = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    found = []
    for function in (fused, plain):
        inputs = [value.clone().requires_grad_() for value in values]
        torch.manual_seed(2)
        output = function(*inputs)
        (output * torch.arange(output.numel(), dtype=output.dtype).view(output.shape).cos()).sum().backward()
        found.append([output, *(each.grad for each in inputs)])
    return max((a - b).abs().max().item() for a, b in zip(*found))

def swiglu(x, bias):
    gate, up = (x + bias).chunk(2, -1)
    return F.silu(gate) * up

def geglu(x, bias):
    gate, up = (x + bias).chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up

def attention(q, k, v):
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / 8 ** 0.5
    scores = scores.masked_fill(torch.ones(q.size(2), k.size(2)).tril(k.size(2) - q.size(2)) == 0, -torch.inf)
    return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)

def norm(is_rms):
    module = object.__new__(Norm)
    torch.nn.Module.__init__(module)
    module.eps, module.shape, module.is_rms, module.is_zero_centered = 1e-5, (16,), is_rms, False
    def run(x, weight, bias):
        module.__dict__["weight"], module.__dict__["bias"] = weight, bias
        return module(x) + 0 * bias.sum()
    return run

def by_hand(is_rms):
    def run(x, weight, bias):
        centred = x if is_rms else x - x.mean(-1, keepdim=True)
        scaled = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
        return scaled + (0 * bias.sum() if is_rms else bias)
    return run

def compare(config):
    core = torch_layers.Attention(config, 1, None, "self")
    dropout = fused_bias_dropout.get_bias_dropout_add
    words = torch.randint(0, 20, (6, 2))
    group = process_groups.get_tensor_model_parallel_group()
    heads = ((6, 2, 4, 8), (9, 2, 2, 8), (9, 2, 2, 8))
    return {
        "attention": differ(lambda q, k, v: core(q, k, v, None), attention, *heads),
        "layer norm": differ(norm(False), by_hand(False), (6, 16), (16,), (16,)),
        "rms norm": differ(norm(True), by_hand(True), (6, 16), (16,), (16,)),
        "bias + swiglu": differ(fused_bias_swiglu.bias_swiglu_impl, swiglu, (6, 2, 16), (16,)),
        "bias + geglu": differ(fused_bias_geglu.bias_geglu_impl, geglu, (6, 2, 16), (16,)),
        "bias + gelu": differ(
            fused_bias_gelu.bias_gelu_impl, lambda x, b: F.gelu(x + b, approximate="tanh"), (6, 2, 16), (16,)
        ),
        "bias + dropout + add": differ(
            lambda x, b, r: dropout(True, True)((x, b), r, 0.3),
            lambda x, b, r: r + F.dropout(x + b, 0.3),
            *[(6, 16)] * 3,
        ),
        "cross entropy": differ(
            lambda x: fused_vocab_parallel_cross_entropy(x, words, group),
            lambda x: F.cross_entropy(x.flatten(0, 1), words.flatten(), reduction="none").view(6, 2),
            (6, 2, 20),
        ),
    }

_build = startup.build_chunks
def build_chunks(job, config, *rest):
    with open(f"{sys.argv[1]}/differences.json", "w") as file:
        json.dump(compare(config), file)
    return _build(job, config, *rest)
startup.build_chunks = build_chunks
"""


def test_fused_is_plain(ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path) -> None:
    """In fp64; megatron-core's GeLUs have constants of single precision, and its loss a gradient in bf16."""
    model = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2, "seq_length": 16}
    job = tiny_job("kernels", model=model, schedule={"train_iters": 1, "lr_warmup_iters": 0})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(COMPARED))
    differences = json.loads((run.path / "differences.json").read_text())
    assert len(differences) == 8
    allowed = {"bias + geglu": 1e-7, "bias + gelu": 1e-7, "cross entropy": 2**-8}
    assert {name: each for name, each in differences.items() if not each < allowed.get(name, 1e-12)} == {}
