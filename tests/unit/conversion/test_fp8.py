"""Weights in FP8 with a scale of each block, as DeepSeek V3 is published: transformers' own reading is the oracle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.config_json import read_config, to_model
from orchestrator.conversion.hugging_face.families.llama import LLAMA
from orchestrator.conversion.hugging_face.families.registry import family_of_type
from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.conversion.tensors import fp8
from orchestrator.conversion.tensors.names import SINGLE
from orchestrator.conversion.tensors.safetensors_reader import PublishedWeights
from orchestrator.spec.loading import load_resolved
from tests.unit.conversion import families
from tests.unit.conversion.families_configurations import DELTA, FEW_EXPERTS, LATENT_EXPERTS, SIZES

with families.transformers_alone():
    import transformers

BLOCK = 8
WHOLE_BLOCKS = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8}
"""transformers reads no smaller ones."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v3": ("DeepseekV3Config", {**LATENT_EXPERTS, **WHOLE_BLOCKS, "first_k_dense_replace": 1}),
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 16}),
    "qwen3-moe": ("Qwen3MoeConfig", {**SIZES, **FEW_EXPERTS, "head_dim": 16}),
    "qwen3-next": (
        "Qwen3NextConfig",
        {**SIZES, **FEW_EXPERTS, **DELTA, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 56}
        | {"layer_types": ["linear_attention", "full_attention"]},
    ),
}
QUANTIZATION = {
    **{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"},
    "weight_block_size": [BLOCK, BLOCK],
}
NAME = "model.layers.0.mlp.up_proj.weight"


def scales_of(matrix: torch.Tensor, block: int) -> torch.Tensor:
    """One for each block, by which its largest number becomes E4M3's largest."""
    rows, columns = (math.ceil(size / block) for size in matrix.shape)
    blocks = [
        [matrix[block * r : block * (r + 1), block * c : block * (c + 1)] for c in range(columns)] for r in range(rows)
    ]
    return torch.tensor([[each.abs().max() / 448 for each in row] for row in blocks])


def spread(scales: torch.Tensor, matrix: torch.Tensor, block: int) -> torch.Tensor:
    """Of each number of a matrix the scale."""
    rows, columns = (torch.arange(size) // block for size in matrix.shape)
    return scales[rows][:, columns]


def quantize(folder: Path) -> None:
    """Write the files of a model anew as DeepSeek V3 is published: matrices of layers in FP8, but those of routers."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in families.weights(folder).items():
        if tensor.dim() != 2 or ".layers." not in name or name.endswith("mlp.gate.weight"):
            found[name] = tensor if "bias" in name else tensor.bfloat16()
            continue
        scales = scales_of(tensor, BLOCK)
        found[name] = (tensor / spread(scales, tensor, BLOCK)).to(torch.float8_e4m3fn)
        found[f"{name}_scale_inv"] = scales
    for file in [*folder.glob("*.safetensors*")]:
        file.unlink()
    save_file(found, folder / SINGLE, metadata={"format": "pt"})
    config = {**read_config(folder), "quantization_config": QUANTIZATION, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", MODELS)
def test_transformers_reads_the_export_as_it_reads_what_came(name: str, tmp_path: Path) -> None:
    """Bitwise, where it makes bf16 of FP8; and computes the same from it."""
    kind, said = MODELS[name]
    with families.transformers_alone():
        families.make(tmp_path, models={name: getattr(transformers, kind)(**said)})
    theirs, out = tmp_path / name / "theirs", tmp_path / "out"
    quantize(theirs)
    run = families.import_saved(tmp_path / name)
    job = load_resolved(run.resolved())
    export(run.checkpoint(0), job, out, most_bytes=10**9, dtype=None, tokenizer="no", threads=1)
    assert "quantization_config" not in read_config(out)
    with families.transformers_alone():
        read = transformers.FineGrainedFP8Config(weight_block_size=(BLOCK, BLOCK), dequantize=True)
        came, went = (
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **more).eval()
            for folder, more in ((theirs, {"quantization_config": read}), (out, {}))
        )
    assert came.state_dict().keys() == went.state_dict().keys()
    assert [key for key, tensor in came.state_dict().items() if not torch.equal(tensor, went.state_dict()[key])] == []
    assert torch.equal(families.logits(came), families.logits(went))


@pytest.mark.parametrize("shape", [(16, 24), (13, 24), (16, 20), (3, 5), (8, 1)])
def test_blocks_of_which_the_last_ones_are_smaller(shape: tuple[int, int]) -> None:
    """As DeepSeek's fp8_cast_bf16: the product in fp32, rounded to bf16."""
    matrix = torch.randn(shape)
    scales = scales_of(matrix, BLOCK) * torch.rand(1)
    stored = matrix.to(torch.float8_e4m3fn)
    assert fp8.fits(shape, (*scales.shape,), (BLOCK, BLOCK))
    found = fp8.dequantized(stored, scales, (BLOCK, BLOCK))
    assert torch.equal(found, (stored.float() * spread(scales, matrix, BLOCK)).bfloat16())


def test_blocks_that_are_no_squares(tmp_path: Path) -> None:
    stored, scales = torch.randn(6, 10).to(torch.float8_e4m3fn), torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    save_file({NAME: stored, f"{NAME}_scale_inv": scales}, tmp_path / SINGLE)
    published = PublishedWeights(tmp_path, LLAMA, (4, 6))
    assert (list(published), published.dtype(NAME), published.bytes(NAME)) == ([NAME], torch.bfloat16, 120)
    factors = scales.repeat_interleave(4, 0)[:6].repeat_interleave(6, 1)[:, :10]
    assert torch.equal(published.read(NAME), (stored.float() * factors).bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scales_in_16_bits_are_multiplied_with_in_fp32(dtype: torch.dtype, tmp_path: Path) -> None:
    """As in the published files of Qwen 3."""
    stored, scales = torch.randn(6, 10).to(torch.float8_e4m3fn), torch.rand(2, 2).to(dtype)
    save_file({NAME: stored, f"{NAME}_scale_inv": scales}, tmp_path / SINGLE)
    factors = scales.float().repeat_interleave(4, 0)[:6].repeat_interleave(6, 1)[:, :10]
    published = PublishedWeights(tmp_path, LLAMA, (4, 6))
    assert torch.equal(published.read(NAME), (stored.float() * factors).bfloat16())


def test_a_block_larger_than_memory_takes_none(tmp_path: Path) -> None:
    save_file(
        {NAME: torch.ones(6, 10).to(torch.float8_e4m3fn), f"{NAME}_scale_inv": torch.ones(1, 1)}, tmp_path / SINGLE
    )
    assert torch.equal(PublishedWeights(tmp_path, LLAMA, (10**19, 10**19)).read(NAME), torch.ones(6, 10).bfloat16())


HOSTILE: dict[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]] = {
    "missing": lambda scales: {},
    "a row less": lambda scales: {f"{NAME}_scale_inv": scales[:1].clone()},
    "of the matrix transposed": lambda scales: {f"{NAME}_scale_inv": scales.t().contiguous()},
    "a vector": lambda scales: {f"{NAME}_scale_inv": scales.flatten()},
    "exponents": lambda scales: {f"{NAME}_scale_inv": scales.to(torch.uint8)},
    "with scales of their own": lambda scales: {
        f"{NAME}_scale_inv": scales.to(torch.float8_e4m3fn),
        f"{NAME}_scale_inv_scale_inv": torch.ones(1, 1),
    },
    "of another matrix": lambda scales: {f"{NAME}_scale_inv": scales, "model.norm.weight_scale_inv": scales.clone()},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_scales_of_other_blocks_are_refused(kind: str, tmp_path: Path) -> None:
    stored = torch.ones(16, 24).to(torch.float8_e4m3fn)
    save_file({NAME: stored, **HOSTILE[kind](torch.ones(2, 3))}, tmp_path / SINGLE)
    published = PublishedWeights(tmp_path, LLAMA, (BLOCK, BLOCK))
    with refused("network_differs", "weight"):
        published.check({NAME: (16, 24)}, ignored=())


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 1e38])
def test_scales_that_make_no_number_are_refused(scale: float, tmp_path: Path) -> None:
    scales = torch.ones(2, 3)
    scales[1, 2] = scale
    save_file({NAME: torch.ones(16, 24).to(torch.float8_e4m3fn), f"{NAME}_scale_inv": scales}, tmp_path / SINGLE)
    with refused("unusable_scales", f"{NAME}_scale_inv"):
        PublishedWeights(tmp_path, LLAMA, (BLOCK, BLOCK))


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"weight_block_size": None}, "weight_block_size of quantization_config"),
        ({"weight_block_size": [128]}, "weight_block_size of quantization_config"),
        ({"weight_block_size": [128, 0]}, "weight_block_size of quantization_config"),
        ({"weight_block_size": [128, True]}, "weight_block_size of quantization_config"),
        ({"fmt": "e5m2"}, "fmt of quantization_config"),
        ({"activation_scheme": "static"}, "activation_scheme of quantization_config"),
    ],
)
def test_what_is_said_of_them_otherwise_is_refused_by_key(more: dict[str, Any], key: str) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    config = {**sizes, "model_type": "qwen3", "vocab_size": 100, "quantization_config": QUANTIZATION}
    assert to_model(config, family_of_type("qwen3"))["num_layers"] == 2
    with refused("unsupported_config_value", key):
        to_model({**config, "quantization_config": {**QUANTIZATION, **more}}, family_of_type("qwen3"))
    with refused("quantized_weights", "quantization_config"):
        to_model({**config, "quantization_config": {**more, "quant_method": ["fp8"]}}, family_of_type("qwen3"))
