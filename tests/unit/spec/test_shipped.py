"""Shipped jobs and presets."""

from __future__ import annotations

import pytest
from support.shipped import SHIPPED

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job, load_text
from orchestrator.spec.presets import preset_names, sees_images

# heads, hidden, layers of Megatron-LM's published scaling table
TABLE = {
    "gpt-1.7b": (16, 2048, 24),
    "gpt-7.1b": (32, 4096, 30),
    "gpt-16b": (48, 6144, 32),
    "gpt-32b": (56, 7168, 48),
    "gpt-70b": (64, 8192, 84),
    "gpt-119b": (80, 10240, 92),
    "gpt-177b": (96, 12288, 96),
    "gpt-314b": (128, 16384, 96),
    "gpt-462b": (144, 18432, 112),
}


def of_preset(name: str) -> JobSpec:
    chat = ", chat: {packing: false}" if sees_images(name) else ""
    return load_text(
        f"""
        name: {name}
        model: {{preset: {name}}}
        batch: {{}}
        data: {{blend: [corpus], tokenizer: {{type: huggingface, path: tokenizer.json}}{chat}}}
        optimizer: {{lr: 1e-4}}
        schedule: {{train_iters: 10}}
        """.replace("\n        ", "\n")
    ).job


def test_the_jobs_of_the_documentation_are_shipped() -> None:
    assert {"gpt-tiny-cpu", "gpt2-large", "gpt-345m", "llama-1.7b", "llama3-8b", "gpt-1.7b", "gpt-7.1b"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_job_is_legal(name: str) -> None:
    job = load_job([SHIPPED[name]]).job
    assert job.global_batch_size == job.batch.micro_batch_size * job.num_micro_batches * job.data_parallel_size


def test_the_benchmark_is_the_table_s() -> None:
    job = load_job([SHIPPED["gpt-1.7b"]]).job
    assert (job.world_size, job.batch.micro_batch_size, job.global_batch_size, job.num_micro_batches) == (1, 4, 192, 48)
    assert job.precision.dtype == "bf16"
    assert job.data.random_tokens
    spread = load_job([SHIPPED["gpt-1.7b"]], ["launch.nodes=6", "launch.gpus_per_node=8"]).job
    assert (spread.data_parallel_size, spread.num_micro_batches) == (48, 1)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_legal_model(name: str) -> None:
    assert of_preset(name).model.preset == name


@pytest.mark.parametrize("name", TABLE)
def test_the_presets_of_the_table(name: str) -> None:
    model = of_preset(name).model
    assert (model.num_attention_heads, model.hidden_size, model.num_layers) == TABLE[name]
    assert (model.seq_length, model.vocab_size, model.ffn_size) == (4096, 131072, 4 * model.hidden_size)
    assert model.untie_embeddings_and_output_weights
    assert not model.add_bias_linear
    assert (model.hidden_dropout, model.attention_dropout) == (0.0, 0.0)
    assert (model.position_embedding_type, model.normalization, model.activation) == ("rope", "LayerNorm", "gelu")


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [
        ("gpt2", 12, 768, 12),
        ("gpt2-medium", 24, 1024, 16),
        ("gpt2-large", 36, 1280, 20),
        ("gpt2-xl", 48, 1600, 25),
        ("gpt-345m", 24, 1024, 16),
    ],
)
def test_the_presets_of_gpt2(name: str, layers: int, hidden: int, heads: int) -> None:
    model = of_preset(name).model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (layers, hidden, heads)
    assert (model.vocab_size, model.seq_length, model.positions) == (50257, 1024, 1024)
    assert (model.position_embedding_type, model.normalization, model.activation) == (
        "learned_absolute",
        "LayerNorm",
        "gelu" if name == "gpt-345m" else "gelu_tanh",
    )
    assert model.add_bias_linear
    assert not model.untie_embeddings_and_output_weights
    assert (model.hidden_dropout, model.attention_dropout) == (0.1, 0.1)


def test_llama() -> None:
    model = of_preset("llama3-8b").model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads, model.query_groups) == (32, 4096, 32, 8)
    assert (model.ffn_size, model.vocab_size, model.rotary_base, model.activation) == (14336, 128256, 500000, "swiglu")
    assert model.normalization == "RMSNorm"


def test_what_sets_families_apart() -> None:
    """Figures that a count of parameters does not show."""
    mistral, qwen, gemma = (of_preset(name).model for name in ("mistral-7b", "qwen2.5-7b", "gemma-7b"))
    assert (mistral.sliding_window, mistral.rotary_base) == (4096, 10000)
    assert (qwen.has_qkv_bias, qwen.rotary_base, qwen.norm_epsilon) == (True, 1000000, 1e-6)
    assert (gemma.activation, gemma.apply_layernorm_1p, gemma.scale_embeddings) == ("geglu", True, True)
    assert of_preset("qwen3-8b").model.qk_layernorm
    assert of_preset("llama2-7b").model.rope_scaling is None
    for name, factor in (("llama3.1-8b", 8.0), ("llama3.2-1b", 32.0)):
        scaling = of_preset(name).model.rope_scaling
        assert scaling is not None
        assert (scaling.type, scaling.factor, scaling.original_max_position_embeddings) == ("llama3", factor, 8192)


def test_llava() -> None:
    """A Llama 2 with the rows of the image's token and of padding, trained on shorter sequences."""
    seeing, llama = of_preset("llava1.5-7b").model, of_preset("llama2-7b").model
    others = {"preset": "llama2-7b", "vocab_size": 32000, "seq_length": 4096, "vision": None}
    assert seeing.model_copy(update=others) == llama
    assert (seeing.vocab_size, seeing.seq_length) == (32064, 2048)
    assert seeing.vision is not None
    assert (seeing.vision.positions, seeing.vision.freeze) == (577, False)
