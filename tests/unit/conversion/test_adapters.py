"""Adapters of a checkpoint: added to their weights, and refused where they are not those of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused import refused
from support.training import tiny_job

from orchestrator.conversion.hugging_face.families.llama import LLAMA
from orchestrator.conversion.hugging_face.hf_export import Source
from orchestrator.conversion.hugging_face.peft import export_adapter
from orchestrator.conversion.shapes import shape_of
from orchestrator.errors import CheckpointError
from tests.unit.conversion.test_config_json import job_of

LAYERS, WIDE, RANK = 2, 16, 3
MODEL = {
    **{"num_layers": LAYERS, "hidden_size": WIDE, "num_query_groups": 2, "activation": "swiglu", "vocab_size": 20},
    **{"normalization": "RMSNorm", "add_bias_linear": False, "position_embedding_type": "rope"},
    "lora": {"rank": RANK, "alpha": 4.5, "target_modules": ["linear_proj"]},
}
PROJ = "decoder.layers.self_attention.linear_proj"
OTHER = "decoder.layers.mlp.linear_fc2.weight"


class Stored(dict[str, torch.Tensor]):
    """Weights as `StoredWeights` gives them."""

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        return self[key][place]

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self[key].shape)

    def dtype(self, key: str) -> torch.dtype:
        return self[key].dtype


def source(dtype: torch.dtype | None = None, stored: torch.dtype = torch.bfloat16) -> Source:
    model = tiny_job("tuned", model=MODEL).model
    torch.manual_seed(1)
    weights = Stored()
    for weight in LLAMA.weights(model):
        shape = (*weight.within, *shape_of(weight.rule.ours, model, 20))
        weights.setdefault(weight.rule.ours, torch.randn(shape).to(stored))
    weights[f"{PROJ}.lora.a"] = torch.randn(LAYERS, RANK, WIDE).to(stored)
    weights[f"{PROJ}.lora.b"] = torch.randn(LAYERS, WIDE, RANK).to(stored)
    fake: Any = weights
    return Source(fake, model, LLAMA, 20, dtype)


def written(of: Source, key: str, layer: int) -> torch.Tensor:
    [weight] = [each for each in LLAMA.weights(of.model) if each.rule.ours == key and each.place == (layer,)]
    [tensor] = of.tensors(weight)
    return tensor


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16, torch.float32])
def test_they_are_added_in_fp32_and_rounded_once(dtype: torch.dtype | None) -> None:
    of = source(dtype)
    for layer in range(LAYERS):
        weight, a, b = (of.weights.read(f"{PROJ}{end}", (layer,)) for end in (".weight", ".lora.a", ".lora.b"))
        expected = weight.float() + 4.5 / RANK * (b.float() @ a.float())
        assert torch.equal(written(of, f"{PROJ}.weight", layer), expected.to(dtype or torch.bfloat16))
        assert torch.equal(written(of, OTHER, layer), of.weights.read(OTHER, (layer,)).to(dtype or torch.bfloat16))
    sizes = {entry.name: entry.dtype for entry in of.entries()}
    assert set(sizes.values()) == {dtype or torch.bfloat16}
    assert not [name for name in sizes if "lora" in name]


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_sum_too_large_for_fp16_is_refused(dtype: torch.dtype | None) -> None:
    """Where the weights are stored in it, too, each of which it can hold."""
    of = source(dtype, stored=torch.float16)
    of.weights.read(f"{PROJ}.lora.b", (1,)).fill_(60_000.0)
    with refused("too_large_for_fp16", "o_proj.weight"):
        written(of, f"{PROJ}.weight", 1)


def test_a_checkpoint_without_them_or_with_others_is_refused() -> None:
    weights: Any = (of := source()).weights
    weights[f"{PROJ}.lora.a"] = torch.randn(LAYERS, RANK + 1, WIDE)
    with refused("tensor_shape_differs", "lora.a", "(2, 4, 16)", kind=CheckpointError):
        of.entries()
    del weights[f"{PROJ}.lora.a"]
    with refused("missing_tensors", "linear_proj.lora.a", kind=CheckpointError):
        of.entries()
    weights = (of := source()).weights
    weights["decoder.layers.mlp.linear_fc2.lora.a"] = torch.randn(LAYERS, RANK, 64)
    with refused("unexpected_tensors", "fc2.lora.a", "Llama", kind=CheckpointError):
        of.entries()


@pytest.mark.parametrize("preset", ["granite3.0-1b-a400m", "llama4-scout", "gpt-oss-20b"])
def test_experts_in_one_tensor_have_no_adapters_in_files_of_peft(preset: str, tmp_path: Path) -> None:
    job = job_of({"preset": preset, "lora": {"rank": RANK, "target_modules": ["linear_fc1"]}})
    with refused("adapters_of_packed_experts"):
        export_adapter(tmp_path / "none", job, tmp_path / "out", base="theirs", dtype=None)
    assert not (tmp_path / "out").exists()


def test_peft_has_no_adapters_behind_a_scan(tmp_path: Path) -> None:
    job = job_of({"preset": "mamba2-130m", "lora": {"rank": RANK}})
    with refused("adapters_behind_a_scan", "out_proj.weight"):
        export_adapter(tmp_path / "none", job, tmp_path / "out", base="theirs", dtype=None)
    assert not (tmp_path / "out").exists()
