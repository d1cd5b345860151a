"""Checkpoints in Megatron-LM's older format, made of a network that is given plainly.

Written from the layout of the published GPT-345M and BERT-345M and from the formulas of the three orders of queries,
keys and values, not from our tables: what is imported is held against the plain network.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orchestrator.spec.job import JobSpec
from support.training import tiny_job

PARTS = ("query", "key", "value")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Network:
    """Sizes, and weights by plain names: `layers.N.query.weight` has `[heads * width, hidden]`."""

    layers: int = 4
    hidden: int = 32
    heads: int = 4
    ffn: int = 128
    positions: int = 32
    rows: int = 256
    bert: bool = False
    weights: Tensors = field(default_factory=dict)

    @classmethod
    def random(cls, seed: int = 1, std: float = 0.2, dtype: torch.dtype = torch.float16, **sizes: Any) -> Network:
        found = cls(**sizes)
        generator = torch.Generator().manual_seed(seed)
        for name, shape in found._shapes():
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            found.weights[name] = (mean + torch.randn(shape, generator=generator) * std).to(dtype)
        return found

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, ffn = self.hidden, self.ffn
        yield "words", (self.rows, hidden)
        yield "positions", (self.positions, hidden)
        if self.bert:
            yield "types", (2, hidden)
        matrices = dict.fromkeys((*PARTS, "projection"), (hidden, hidden)) | {
            "up": (ffn, hidden),
            "down": (hidden, ffn),
        }
        for layer in range(self.layers):
            for name in ("norm1", "norm2"):
                yield from ((f"layers.{layer}.{name}.{kind}", (hidden,)) for kind in ("weight", "bias"))
            for name, shape in matrices.items():
                yield f"layers.{layer}.{name}.weight", shape
                yield f"layers.{layer}.{name}.bias", shape[:1]
        yield from ((f"norm.{kind}", (hidden,)) for kind in ("weight", "bias"))
        if self.bert:
            for name in ("pooler", "transform"):
                yield f"{name}.weight", (hidden, hidden)
                yield f"{name}.bias", (hidden,)
            yield from ((f"transform_norm.{kind}", (hidden,)) for kind in ("weight", "bias"))
            yield "words_bias", (self.rows,)
            yield "order.weight", (2, hidden)
            yield "order.bias", (2,)

    def arguments(self, tp: int = 1, pp: int = 1, **more: Any) -> dict[str, Any]:
        """What Megatron-LM 2.x wrote beside the weights, as far as it says what the network is."""
        return {
            **{"num_layers": self.layers, "hidden_size": self.hidden, "num_attention_heads": self.heads},
            **{"ffn_hidden_size": self.ffn, "kv_channels": self.hidden // self.heads, "seq_length": self.positions},
            **{"max_position_embeddings": self.positions, "padded_vocab_size": self.rows, "layernorm_epsilon": 1e-5},
            **{"bias_gelu_fusion": False, "openai_gelu": False, "onnx_safe": None, "hidden_dropout": 0.1},
            **{"apply_query_key_layer_scaling": True, "attention_dropout": 0.1, "params_dtype": torch.float16},
            **{"make_vocab_size_divisible_by": 128, "fp16": True, "consumed_train_samples": 80, "rank": 0},
            **{"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "init_method_std": 0.02},
            **more,
        }


def joined(parts: list[torch.Tensor], heads: int, version: float) -> torch.Tensor:
    """Queries, keys and values of some heads as one tensor, `[3 * heads * width, …]`, in the order of a version."""
    if version == 0:
        return torch.cat(parts)
    by_head = [part.view(heads, -1, *part.shape[1:]) for part in parts]
    return torch.stack(by_head, 2 if version == 1.0 else 1).reshape(-1, *parts[0].shape[1:])


def cut(tensor: torch.Tensor, tp: int, rank: int, axis: int = 0) -> torch.Tensor:
    return tensor.chunk(tp, axis)[rank].contiguous()


def stack(network: Network, layers: range, tp: int, rank: int, version: float, attention: str) -> Tensors:
    """The layers of a stage for one rank, counted from 0."""
    found: Tensors = {}
    for number, layer in enumerate(layers):
        own = {
            name.removeprefix(f"layers.{layer}."): w
            for name, w in network.weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        into = f"layers.{number}."
        for kind in ("weight", "bias"):
            qkv = [cut(own[f"{part}.{kind}"], tp, rank) for part in PARTS]
            found[f"{into}input_layernorm.{kind}"] = own[f"norm1.{kind}"]
            found[f"{into}{attention}.query_key_value.{kind}"] = joined(qkv, network.heads // tp, version)
            by_columns = kind == "weight"
            projection, down = own[f"projection.{kind}"], own[f"down.{kind}"]
            found[f"{into}{attention}.dense.{kind}"] = cut(projection, tp, rank, 1) if by_columns else projection
            found[f"{into}post_attention_layernorm.{kind}"] = own[f"norm2.{kind}"]
            found[f"{into}mlp.dense_h_to_4h.{kind}"] = cut(own[f"up.{kind}"], tp, rank)
            found[f"{into}mlp.dense_4h_to_h.{kind}"] = cut(down, tp, rank, 1) if by_columns else down
    return found


def in_order(names: Mapping[str, Any]) -> list[str]:
    """Weight before bias, module by module, as a model has its parameters."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    return [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]


def model_of(
    network: Network, tp: int, rank: int, stage: int, pp: int, version: float, older: bool = False
) -> dict[str, Any]:
    """What one rank has under `model`. `older`: with the names of the first releases."""
    weights, each = network.weights, network.layers // pp
    own = stack(
        network, range(stage * each, (stage + 1) * each), tp, rank, version, "attention" if older else "self_attention"
    )
    transformer = {name: own[name] for name in in_order(own)}
    language: dict[str, Any] = {}
    if stage == 0:
        language["embedding"] = {
            "word_embeddings": {"weight": cut(weights["words"], tp, rank)},
            "position_embeddings": {"weight": weights["positions"]},
            **({"tokentype_embeddings": {"weight": weights["types"]}} if network.bert else {}),
        }
    language["transformer" if older else "encoder"] = transformer
    model: dict[str, Any] = {"language_model": language}
    if stage < pp - 1:
        return model
    transformer |= {f"final_layernorm.{kind}": weights[f"norm.{kind}"] for kind in ("weight", "bias")}
    if network.bert:
        language["pooler"] = {f"dense.{kind}": weights[f"pooler.{kind}"] for kind in ("weight", "bias")}
        model["lm_head"] = {
            "bias": cut(weights["words_bias"], tp, rank),
            **{f"dense.{kind}": weights[f"transform.{kind}"] for kind in ("weight", "bias")},
            **{f"layernorm.{kind}": weights[f"transform_norm.{kind}"] for kind in ("weight", "bias")},
        }
        model["binary_head"] = {kind: weights[f"order.{kind}"] for kind in ("weight", "bias")}
    if pp > 1:
        model["word_embeddings_for_head"] = {"weight": cut(weights["words"], tp, rank)}
    return model


def generators() -> dict[str, Any]:
    """The states of random generators, as they lie in such a file."""
    state = random.Random(1).getstate()
    numpy_state = np.random.RandomState(1).get_state()
    return {
        "random_rng_state": state,
        "np_rng_state": numpy_state,
        "torch_rng_state": torch.get_rng_state(),
        "rng_tracker_states": {},
    }


def write(
    folder: Path,
    network: Network,
    *,
    tp: int = 1,
    pp: int = 1,
    version: float | None = 3.0,
    older: bool = False,
    arguments: dict[str, Any] | None = None,
    zipped: bool = True,
    **more: Any,
) -> Path:
    """Write the files of all ranks; `version` None leaves it out, as before there were versions."""
    for stage in range(pp):
        for rank in range(tp):
            place = folder / (f"mp_rank_{rank:02d}" if pp == 1 else f"mp_rank_{rank:02d}_{stage:03d}")
            place.mkdir(parents=True)
            content = {
                "iteration": 10,
                "model": model_of(network, tp, rank, stage, pp, version or 0, older),
                **({} if version is None else {"checkpoint_version": version}),
                **({} if arguments is None else {"args": argparse.Namespace(**{**arguments, "rank": rank})}),
                **generators(),
                **more,
            }
            torch.save(content, place / "model_optim_rng.pt", _use_new_zipfile_serialization=zipped)
    return folder


SIZES: dict[str, Any] = {
    **{"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 250},
    **{"position_embedding_type": "learned_absolute"},
}
"""The model of a network of these sizes, as far as a job says them."""


def job_of(network: Network, **sections: Any) -> JobSpec:
    model = {**SIZES, "architecture": "bert" if network.bert else "gpt"}
    return tiny_job("older", **{"model": model, "precision": {"dtype": "fp16"}, **sections})


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a rank's file anew."""
    path = folder / "model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    change(content)
    torch.save(content, path)


def set_key(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({name: value})
