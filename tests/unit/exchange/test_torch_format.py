"""Megatron-LM's older format, a pickle per rank: the same network whatever the order and the layout it is stored in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.rank_files import PARTS, Network, write
from support.training import tiny_job

from orchestrator.exchange.megatron import describe
from orchestrator.exchange.torch_format.weights import RankWeights
from orchestrator.spec.job import JobSpec

SIZES: dict[str, Any] = {
    **{"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 250},
    **{"position_embedding_type": "learned_absolute"},
}


def job_of(network: Network, **sections: Any) -> JobSpec:
    model = {**SIZES, "architecture": "bert" if network.bert else "gpt"}
    return tiny_job("older", **{"model": model, "precision": {"dtype": "fp16"}, **sections})


def as_plain(weights: RankWeights, network: Network) -> dict[str, torch.Tensor]:
    """Under the names of the plain network, by the order that megatron-core has: rows of each head, [q, k, v]."""
    stack = "encoder" if network.bert else "decoder"
    names = {
        **{"linear_qkv.layer_norm": "norm1", "linear_fc1.layer_norm": "norm2"},
        **{"self_attention.linear_proj": "projection", "mlp.linear_fc1": "up", "mlp.linear_fc2": "down"},
    }
    found: dict[str, torch.Tensor] = {}
    for layer in range(network.layers):
        for kind in ("weight", "bias"):
            for ours, plain in names.items():
                module = ours if "." in ours and ours.split(".")[0] in ("self_attention", "mlp") else ""
                key = (
                    f"{module}.{kind}" if module else f"{'self_attention' if plain == 'norm1' else 'mlp'}.{ours}_{kind}"
                )
                found[f"layers.{layer}.{plain}.{kind}"] = weights.read(f"{stack}.layers.{key}", (layer,))
            qkv = weights.read(f"{stack}.layers.self_attention.linear_qkv.{kind}", (layer,))
            by_head = qkv.view(network.heads, 3, -1, *qkv.shape[1:])
            for place, part in enumerate(PARTS):
                found[f"layers.{layer}.{part}.{kind}"] = by_head[:, place].flatten(0, 1)
    plain = {"words": "embedding.word_embeddings.weight", "positions": "embedding.position_embeddings.weight"}
    plain |= {f"norm.{kind}": f"{stack}.final_layernorm.{kind}" for kind in ("weight", "bias")}
    if network.bert:
        plain |= {"types": "embedding.tokentype_embeddings.weight", "words_bias": "output_layer.bias"}
        modules = {"pooler": "pooler.dense", "transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm"}
        for ours, module in {**modules, "order": "binary_head"}.items():
            plain |= {f"{ours}.{kind}": f"{module}.{kind}" for kind in ("weight", "bias")}
    return found | {name: weights.read(key, ()) for name, key in plain.items()}


@pytest.mark.parametrize("bert", [False, True], ids=["gpt", "bert"])
@pytest.mark.parametrize("version", [None, 0, 1.0, 2.0, 3.0])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_one_network_in_every_order_and_layout(
    tmp_path: Path, bert: bool, version: float | None, tp: int, pp: int
) -> None:
    network = Network.random(bert=bert)
    write(tmp_path, network, tp=tp, pp=pp, version=version, older=version is None, arguments=network.arguments(tp, pp))
    weights = RankWeights(tmp_path, job_of(network))
    found = as_plain(weights, network)
    assert found.keys() == network.weights.keys()
    assert [name for name, tensor in network.weights.items() if not torch.equal(found[name], tensor)] == []
    assert len(weights.keys()) == (16 if not bert else 26)
    said = describe(tmp_path)
    assert said["weights"] == sum(tensor.numel() for tensor in network.weights.values())
    assert (said["rows"], said["dtype"], said["iteration"], said["consumed_samples"]) == (256, "fp16", 10, 80)
