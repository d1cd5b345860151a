"""Its weights in a checkpoint, and where they are in a published model."""

from __future__ import annotations

from orchestrator.models.blocks.attention import weights as plain
from orchestrator.models.blocks.gated_attention.matrices import matrices
from orchestrator.models.blocks.protocols import Fields
from orchestrator.models.blocks.weights import PublishedAttention, Rule, Shapes, linears

_OURS, _THEIRS = "decoder.layers.self_attention.", "model.layers.{n}.self_attn."


def weights(model: Fields) -> Shapes:
    """Those of plain attention and the gate's."""
    return {**plain.weights(model), **linears(matrices(model))}


def published() -> tuple[PublishedAttention, ...]:
    """A Llama with it."""
    return (
        PublishedAttention(
            name="Gated Llama",
            model_type="gated_llama",
            architecture="GatedLlamaForCausalLM",
            rules=(
                Rule(f"{_OURS}linear_qkv.layer_norm_weight", ("model.layers.{n}.input_layernorm.weight",)),
                Rule(f"{_OURS}linear_gate.weight", (f"{_THEIRS}gate_proj.weight",)),
                Rule(
                    f"{_OURS}linear_qkv.weight",
                    tuple(f"{_THEIRS}{part}_proj.weight" for part in "qkv"),
                    "interleaved_qkv",
                ),
                Rule(f"{_OURS}linear_proj.weight", (f"{_THEIRS}o_proj.weight",)),
            ),
            fixed={"attention_gate": True},
        ),
    )
