"""Megatron-LM's older format, a pickle per rank: the same network whatever the order and the layout it is stored in."""

from __future__ import annotations

import argparse
import enum
import math
import os
import shutil
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.enums import ModelType
from megatron.core.transformer.enums import AttnBackend
from support.rank_files import PARTS, SIZES, Network, changed, job_of, model_of, set_key, write
from support.refused import refused
from support.training import tiny_job

from orchestrator.conversion.megatron.checkpoint_keys import find_sources, unread, wanted_tensors
from orchestrator.conversion.megatron.checkpoints import describe
from orchestrator.conversion.megatron.torch_format.weights import RankWeights


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


VERSIONS: tuple[float | None, ...] = (None, 0, 1.0, 2.0, 3.0)


@pytest.mark.parametrize("bert", [False, True], ids=["gpt", "bert"])
@pytest.mark.parametrize(
    ("tp", "pp", "version"),
    [
        *((tp, 1, version) for tp in (1, 2) for version in VERSIONS),
        # The order is that of each matrix: stages have whole ones.
        *((tp, 2, version) for tp in (1, 2) for version in (VERSIONS[0], VERSIONS[-1])),
    ],
)
def test_one_network_in_every_order_and_layout(
    tmp_path: Path, bert: bool, tp: int, pp: int, version: float | None
) -> None:
    network = Network.random(bert=bert)
    write(tmp_path, network, tp=tp, pp=pp, version=version, older=version is None, arguments=network.arguments(tp, pp))
    weights = RankWeights(tmp_path, job_of(network))
    found = as_plain(weights, network)
    assert found.keys() == network.weights.keys()
    assert [name for name, tensor in network.weights.items() if not torch.equal(found[name], tensor)] == []
    assert len(weights.keys()) == (16 if not bert else 26)
    said = describe(tmp_path)
    assert sum(map(math.prod, said["tensors"].values())) == sum(each.numel() for each in network.weights.values())
    sources, missing = find_sources(wanted_tensors(job_of(network), 256, with_optimizer=False), said["tensors"])
    assert (missing, unread(sources, said["tensors"])) == ([], [])
    assert (said["rows"], said["dtype"], said["iteration"], said["consumed_samples"]) == (256, "fp16", 10, 80)


class Call:
    """A pickle that makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def planted(module: str, name: str, bases: tuple[type, ...] = (), members: Any = None) -> Any:
    """A class that pickles as one of a module that need not be there."""
    made: Any = enum.Enum(name, members) if members else type(name, bases, {})
    made.__module__, made.__qualname__ = module, name
    return made


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes such a class importable while it is pickled."""

    def make(module: str, name: str, members: Any = None) -> Any:
        made = planted(module, name, members=members)
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
        monkeypatch.setattr(sys.modules[module], name, made, raising=False)
        return made

    return make


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "pickle"])
def test_what_such_files_hold_is_read_by_name(tmp_path: Path, modules: Callable[..., Any], zipped: bool) -> None:
    """Of each release: enumerations under the modules that they have had, loss scalers, numpy's numbers and arrays."""
    network = Network.random()
    old, older, moved = (
        modules(module, name, {"padding": 1, "causal": 2})
        for module, name in (
            ("megatron.model.enums", "AttnMaskType"),
            ("megatron.enums", "ModelType"),
            ("megatron.legacy.model.enums", "LayerType"),
        )
    )
    scaler = modules("fp16.loss_scaler", "DynamicLossScaler")()
    scaler.cur_scale = 4096.0
    more = {
        **{"mask": old.causal, "model_type": older.padding, "layer": moved.causal, "now": ModelType.encoder_or_decoder},
        **{"backend": AttnBackend.auto, "exit_signal": signal.SIGTERM, "shape": torch.Size([2, 3]), "path": tmp_path},
        **{"consumed_train_samples": np.int64(48), "lr": np.float32(0.5), "betas": np.array([0.5, 0.25])},
    }
    arguments = network.arguments(**more)
    write(tmp_path / "there", network, arguments=arguments, zipped=zipped, optimizer={"loss_scaler": scaler})
    said = describe(tmp_path / "there")
    assert (said["arguments"]["consumed_train_samples"], said["arguments"]["lr"]) == (48, 0.5)
    assert said["optimizer"] is None
    weights = RankWeights(tmp_path / "there", job_of(network))
    assert torch.equal(weights.read("embedding.word_embeddings.weight", ()), network.weights["words"])


def test_everything_else_is_refused_by_name(tmp_path: Path, modules: Callable[..., Any]) -> None:
    network = Network.random()
    write(tmp_path / "planted", network, args=Call(tmp_path / "ran"))
    with refused("unreadable_pickle", "model_optim_rng.pt", "posix.mkdir"):
        RankWeights(tmp_path / "planted")
    assert not (tmp_path / "ran").exists()
    stranger = modules("megatron.tokenizer.tokenizer", "_BertWordPieceTokenizer")()
    write(tmp_path / "stranger", network, arguments=network.arguments(tokenizer=stranger))
    with refused("unreadable_pickle", "megatron.tokenizer.tokenizer._BertWordPieceTokenizer"):
        RankWeights(tmp_path / "stranger")


class Getter:
    """A pickle that takes an attribute of what is allowed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (argparse.Namespace, "__init__")


def test_attributes_of_what_is_allowed_are_not_to_be_had(tmp_path: Path) -> None:
    write(tmp_path / "there", Network.random(), args=Getter())
    with refused("unreadable_pickle", "builtins.getattr"):
        RankWeights(tmp_path / "there")


def of_t5(content: dict[str, Any]) -> None:
    language = content["model"]["language_model"]
    language["decoder"] = dict(language["encoder"])


def of_classes(content: dict[str, Any]) -> None:
    content["model"]["classification_head"] = {"weight": torch.zeros(3, 32), "bias": torch.zeros(3)}


def of_experts(content: dict[str, Any]) -> None:
    content["model"]["language_model"]["encoder"]["layers.0.mlp.local_experts.0.dense_h_to_4h.weight"] = torch.zeros(2)


def other_norm(content: dict[str, Any]) -> None:
    content["model"]["language_model"]["encoder"]["layers.1.input_layernorm.bias"] += 1


def other_copy(content: dict[str, Any]) -> None:
    content["model"]["word_embeddings_for_head"]["weight"] += 1


def fewer_layers(content: dict[str, Any]) -> None:
    del content["model"]["language_model"]["encoder"]["layers.1.mlp.dense_4h_to_h.bias"]


def set_argument(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: vars(content["args"]).update({name: value})


FOREIGN = [
    ("mp_rank_01_001", set_key("iteration", 20), ("ranks_of_different_checkpoints", "iteration", "10", "20")),
    (
        "mp_rank_00_001",
        set_key("checkpoint_version", 1.0),
        ("ranks_of_different_checkpoints", "checkpoint_version", "3.0", "1.0"),
    ),
    ("mp_rank_01_000", set_argument("hidden_size", 64), ("ranks_of_different_checkpoints", "hidden_size", "32", "64")),
    ("mp_rank_01_000", lambda content: content.pop("model"), ("checkpoint_without_model", "mp_rank_01_000")),
    (
        "mp_rank_01_001",
        other_norm,
        ("tensor_differs_across_ranks", "decoder.layers.self_attention.linear_qkv.layer_norm_bias"),
    ),
    ("mp_rank_01_001", other_copy, ("tied_weights_differ",)),
    (
        "mp_rank_01_001",
        fewer_layers,
        ("tensor_differs_across_ranks", "language_model.encoder.layers.1.mlp.dense_4h_to_h.bias"),
    ),
    ("*", of_t5, ("unsupported_encoder_decoder",)),
    ("*", of_classes, ("unexpected_tensors", "classification_head.weight", "classification_head.bias")),
    ("*", of_experts, ("unexpected_tensors", "language_model.encoder.layers.0.mlp.local_experts.0")),
    ("*", set_key("checkpoint_version", 1.5), ("unknown_checkpoint_version", "checkpoint_version", "1.5")),
    ("*", set_key("checkpoint_version", "new"), ("missing_checkpoint_version", "checkpoint_version")),
    ("*", set_argument("pipeline_model_parallel_size", 4), ("incomplete_rank_grid", "PP 4", "of 2")),
    ("*", set_argument("expert_model_parallel_size", 2), ("expert_parallel_checkpoint",)),
]


def read_all(weights: RankWeights) -> None:
    for key in weights.keys():  # noqa: SIM118 - it is no mapping
        for layer in range(weights.shape(key)[0]) if weights.places(key) else (None,):
            weights.read(key, () if layer is None else (layer,))


@pytest.mark.parametrize(("place", "change", "refusal"), FOREIGN)
def test_what_is_not_of_one_checkpoint_is_refused(
    tmp_path: Path, place: str, change: Callable[[dict[str, Any]], None], refusal: tuple[str, ...]
) -> None:
    network = Network.random()
    write(tmp_path, network, tp=2, pp=2, arguments=network.arguments(2, 2))
    for folder in tmp_path.glob("mp_rank_*" if place == "*" else place):
        changed(folder, change)
    with refused(*refusal):
        read_all(RankWeights(tmp_path, job_of(network)))


def test_missing_ranks(tmp_path: Path) -> None:
    network = Network.random()
    write(tmp_path, network, tp=2, pp=2, arguments=network.arguments(2, 2))
    (tmp_path / "mp_rank_00_001" / "model_optim_rng.pt").unlink()
    with refused("missing_rank_files", "1 ranks", "tensor-parallel rank 0 of pipeline stage 1"):
        RankWeights(tmp_path)
    shutil.rmtree(tmp_path / "mp_rank_01_001")
    with refused("incomplete_rank_grid", "PP 2", "of 1"):
        RankWeights(tmp_path)
    shutil.rmtree(tmp_path / "mp_rank_01_000")
    with refused("incomplete_rank_grid", "TP 2", "of 1"):
        RankWeights(tmp_path)
    (tmp_path / "mp_rank_00_000" / "model_optim_rng.pt").write_bytes(b"no pickle")
    with refused("unreadable_pickle", "model_optim_rng.pt"):
        RankWeights(tmp_path)
    with refused("not_a_megatron_checkpoint", tmp_path / "mp_rank_00_001"):
        RankWeights(tmp_path / "mp_rank_00_001")


def test_without_arguments_the_weights_say_what_they_can(tmp_path: Path) -> None:
    """As the published GPT-345M of 2019 is: no arguments, no version."""
    network = Network.random(bert=True)
    write(tmp_path, network, tp=2, version=None, older=True)
    said = describe(tmp_path)
    assert said["arguments"] is None
    sizes = "num_layers 4, hidden_size 32, ffn_hidden_size 128, vocab_size 256, max_position_embeddings 32"
    assert sizes in said["unread"]


def test_another_network_than_the_jobs(tmp_path: Path) -> None:
    network = Network.random()
    write(tmp_path, network, version=None)
    for field, value, values in (
        ("num_layers", 2, ("[4, 32]", "[2, 32]")),
        ("max_position_embeddings", 64, ("embedding.position_embeddings.weight", "[1, 32, 32]")),
        ("ffn_hidden_size", 64, ("linear_fc1.weight", "[4, 128, 32]", "[4, 64, 32]")),
    ):
        model = {**SIZES, field: value}
        with refused("network_differs", *values):
            RankWeights(tmp_path, tiny_job("older", model=model))


LATER = {
    **{"input_layernorm.": "input_norm.", "post_attention_layernorm.": "post_attention_norm."},
    **{"final_layernorm.": "final_norm.", "layernorm.": "norm."},
}
ENGINE = {
    "self_attention.query_key_value.": "self_attention.layernorm_qkv.",
    **{"input_layernorm.": "self_attention.layernorm_qkv.layer_norm_", "self_attention.dense.": "self_attention.proj."},
    **{"post_attention_layernorm.": "layernorm_mlp.layer_norm_", "mlp.dense_h_to_4h.": "layernorm_mlp.fc1_"},
    "mlp.dense_4h_to_h.": "layernorm_mlp.fc2_",
}


@pytest.mark.parametrize("names", [LATER, ENGINE], ids=["later", "transformer-engine"])
def test_names_of_other_releases(tmp_path: Path, names: dict[str, str]) -> None:
    """As Megatron-LM 0.16.1's older models have them, and those whose layers were Transformer Engine's."""

    def rename(state: dict[str, Any]) -> None:
        for key, value in list(state.items()):
            if isinstance(value, dict):
                rename(value)
                continue
            new = next((key.replace(old, other) for old, other in names.items() if old in key), key)
            state[new] = state.pop(key)

    network = Network.random(bert=True)
    write(tmp_path, network, arguments=network.arguments())
    changed(tmp_path / "mp_rank_00", lambda content: rename(content["model"]))
    found = as_plain(RankWeights(tmp_path, job_of(network)), network)
    assert [name for name, tensor in network.weights.items() if not torch.equal(found[name], tensor)] == []


def test_a_gate_is_joined_from_what_each_rank_has_of_it(tmp_path: Path) -> None:
    """Its rows stand before those of what is gated, on each rank; and the output has a matrix of its own."""
    network, ffn = Network.random(ffn=64, layers=1), 32
    write(tmp_path, network, tp=2, arguments=network.arguments(2, swiglu=True, ffn_hidden_size=ffn))
    gate, up = network.weights["layers.0.up.weight"].chunk(2)
    output = torch.randn(256, 32).half()

    def change(rank: int) -> Callable[[dict[str, Any]], None]:
        def put(content: dict[str, Any]) -> None:
            language = content["model"]["language_model"]
            both = torch.cat([gate.chunk(2)[rank], up.chunk(2)[rank]])
            language["encoder"] |= {
                "layers.0.mlp.dense_h_to_4h.weight": both,
                "layers.0.mlp.dense_4h_to_h.weight": torch.zeros(32, 16, dtype=torch.float16),
            }
            language["output_layer"] = {"weight": output.chunk(2)[rank].clone()}
            content["args"].untie_embeddings_and_output_weights = True

        return put

    for rank in range(2):
        changed(tmp_path / f"mp_rank_0{rank}", change(rank))
    model = {**SIZES, "num_layers": 1, "activation": "swiglu", "ffn_hidden_size": ffn}
    job = tiny_job("gated", model={**model, "untie_embeddings_and_output_weights": True})
    weights = RankWeights(tmp_path, job)
    assert torch.equal(
        weights.read("decoder.layers.mlp.linear_fc1.weight", (0,)), network.weights["layers.0.up.weight"]
    )
    assert torch.equal(weights.read("output_layer.weight", ()), output)


def endless(content: dict[str, Any]) -> None:
    content["model"]["language_model"]["embedding"]["again"] = content["model"]


def without_table(content: dict[str, Any]) -> None:
    del content["model"]["language_model"]["embedding"]


def flat_matrix(content: dict[str, Any]) -> None:
    content["model"]["language_model"]["encoder"]["layers.0.mlp.dense_4h_to_h.weight"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (endless, ("nested_too_deep",)),
        (without_table, ("missing_pipeline_stages", "embedding.word_embeddings.weight")),
        (flat_matrix, ("tensor_not_a_matrix", "mlp.linear_fc2.weight", "1 dimensions")),
        (lambda content: content["model"].update(lm_head="text"), ("tensor_not_numeric", "lm_head")),
        (lambda content: content["model"].clear(), ("checkpoint_without_model",)),
    ],
)
def test_files_that_nothing_wrote(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], refusal: tuple[str, ...]
) -> None:
    network = Network.random()
    write(tmp_path, network, tp=2, arguments=network.arguments(2))
    for rank in range(2):
        changed(tmp_path / f"mp_rank_0{rank}", change)
    with refused(*refusal):
        RankWeights(tmp_path)


def test_arguments_that_are_no_plain_values_are_none(tmp_path: Path) -> None:
    network = Network.random()
    write(tmp_path, network, tp=2, arguments=network.arguments(2, num_layers=torch.zeros(2)))
    assert "num_layers" not in describe(tmp_path)["arguments"]


def test_virtual_stages_are_in_the_order_in_which_they_compute(tmp_path: Path) -> None:
    """Two stages of two chunks: the first has layers 1 and 3, the second 2 and 4."""
    network = Network.random()
    write(tmp_path, network, pp=2, arguments=network.arguments(1, 2, virtual_pipeline_model_parallel_size=2))

    def put(stage: int) -> Callable[[dict[str, Any]], None]:
        def change(content: dict[str, Any]) -> None:
            del content["model"]
            content |= {f"model{chunk}": model_of(network, 1, 0, 2 * chunk + stage, 4, 3.0) for chunk in range(2)}

        return change

    for stage in range(2):
        changed(tmp_path / f"mp_rank_00_00{stage}", put(stage))
    found = as_plain(RankWeights(tmp_path, job_of(network)), network)
    assert [name for name, tensor in network.weights.items() if not torch.equal(found[name], tensor)] == []
