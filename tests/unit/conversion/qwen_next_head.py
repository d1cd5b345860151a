"""What Qwen3-Next predicts a further token with, as vLLM's and SGLang's `qwen3_next_mtp.py` define it, in plain torch.

Norms multiply by 1 + weight. The embedding of the next token comes before the hidden state; behind both is a layer with
gated attention and experts, and a norm. Embedding and output layer are the model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

Weights = Mapping[str, torch.Tensor]


def shapes(config: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Those of the tensors in published files, by their names."""
    h, heads, groups, d = (
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    yield "mtp.fc.weight", (h, 2 * h)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"mtp.{name}.weight", (h,)
    layer = "mtp.layers.0."
    yield f"{layer}input_layernorm.weight", (h,)
    yield f"{layer}post_attention_layernorm.weight", (h,)
    outputs = {"q_proj": (2 * heads * d, h), "k_proj": (groups * d, h), "v_proj": (groups * d, h)}
    for name, shape in {**outputs, "o_proj": (h, heads * d), "q_norm": (d,), "k_norm": (d,)}.items():
        yield f"{layer}self_attn.{name}.weight", shape
    yield f"{layer}mlp.gate.weight", (config.num_experts, h)
    yield f"{layer}mlp.shared_expert_gate.weight", (1, h)
    widths = {f"experts.{number}": config.moe_intermediate_size for number in range(config.num_experts)}
    for name, width in {**widths, "shared_expert": config.shared_expert_intermediate_size}.items():
        yield f"{layer}mlp.{name}.gate_proj.weight", (width, h)
        yield f"{layer}mlp.{name}.up_proj.weight", (width, h)
        yield f"{layer}mlp.{name}.down_proj.weight", (h, width)


def logits(model: Any, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Of the token behind the next one, [b, s - 1, v], for tokens [b, s]."""
    config = model.config

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = weights[f"mtp.{name}.weight"]
        return functional.rms_norm(x, weight.shape, 1.0 + weight, config.rms_norm_eps)

    with torch.no_grad():
        hidden = model.model(tokens).last_hidden_state[:, :-1]
        embedded = model.get_input_embeddings()(tokens[:, 1:])
        both = torch.cat((normed(embedded, "pre_fc_norm_embedding"), normed(hidden, "pre_fc_norm_hidden")), dim=-1)
        x = both @ weights["mtp.fc.weight"].T
        x = x + _attention(normed(x, "layers.0.input_layernorm"), weights, config)
        x = x + _experts(normed(x, "layers.0.post_attention_layernorm"), weights, config)
        found: torch.Tensor = model.lm_head(normed(x, "norm"))
    return found


def _attention(x: torch.Tensor, weights: Weights, config: Any) -> torch.Tensor:
    """Of the width of a head, a part rotates; each head is multiplied by a gate of its own."""
    begin, (batch, length, _), d = "mtp.layers.0.self_attn.", x.shape, config.head_dim

    def projected(name: str) -> torch.Tensor:
        return (x @ weights[f"{begin}{name}.weight"].T).view(batch, length, -1, d)

    def normed(heads: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(heads, (d,), 1.0 + weights[f"{begin}{name}.weight"], config.rms_norm_eps)

    query, gate = projected("q_proj").view(batch, length, -1, 2 * d).chunk(2, dim=-1)
    query, key, value = normed(query, "q_norm"), normed(projected("k_proj"), "k_norm"), projected("v_proj")
    rotated = int(d * config.rope_parameters["partial_rotary_factor"])
    frequencies = config.rope_parameters["rope_theta"] ** -(torch.arange(0, rotated, 2) / rotated)
    angles = torch.outer(torch.arange(length), torch.cat((frequencies, frequencies)))[:, None]

    def turned(heads: torch.Tensor) -> torch.Tensor:
        first, second = heads[..., :rotated].chunk(2, dim=-1)
        turning = heads[..., :rotated] * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()
        return torch.cat((turning, heads[..., rotated:]), dim=-1)

    shared = config.num_attention_heads // config.num_key_value_heads
    key, value = (each.repeat_interleave(shared, dim=2) for each in (turned(key), value))
    scores = torch.einsum("bqhd,bkhd->bhqk", turned(query), key) / d**0.5
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    given = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(later, -torch.inf).softmax(dim=-1), value)
    return (given * gate.sigmoid()).flatten(2) @ weights[f"{begin}o_proj.weight"].T


def _experts(x: torch.Tensor, weights: Weights, config: Any) -> torch.Tensor:
    """The best of them by softmax, made to sum to 1, and one for all tokens, multiplied by a gate."""
    begin = "mtp.layers.0.mlp."

    def expert(name: str) -> torch.Tensor:
        gate, up, down = (weights[f"{begin}{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    best, chosen = (x @ weights[f"{begin}gate.weight"].T).softmax(dim=-1).topk(config.num_experts_per_tok, dim=-1)
    if config.norm_topk_prob:
        best = best / best.sum(dim=-1, keepdim=True)
    shares = torch.zeros(*x.shape[:-1], config.num_experts).scatter(-1, chosen, best)
    given = sum(shares[..., n, None] * expert(f"experts.{n}") for n in range(config.num_experts))
    shared: torch.Tensor = (x @ weights[f"{begin}shared_expert_gate.weight"].T).sigmoid() * expert("shared_expert")
    return given + shared
