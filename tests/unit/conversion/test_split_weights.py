"""Rows of gated delta nets: key head by key head with us, part by part in Megatron-LM's checkpoints."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
import torch
from support.training import four_layer_job

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.megatron.split_weights import JoinedWeights, SplitWeights

HEADS, KEY, VALUE, SHARED = 3, 2, 5, 2
WIDTHS = {"query": KEY, "key": KEY, "value": SHARED * VALUE, "z": SHARED * VALUE, "beta": SHARED, "alpha": SHARED}
"""Rows of each part of a key head."""
MODEL = four_layer_job(
    "delta",
    model={
        **{"linear_attention_freq": 2, "linear_num_key_heads": HEADS, "linear_num_value_heads": SHARED * HEADS},
        **{"linear_key_head_dim": KEY, "linear_value_head_dim": VALUE, "apply_layernorm_1p": True},
        "add_bias_linear": False,
    },
).model
MATRIX, CHANNELS, NORM = (
    f"decoder.layers.0.self_attention.{name}.weight" for name in ("in_proj", "conv1d", "out_norm")
)


class Stored:
    """Tensors of a checkpoint, in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def keys(self) -> list[str]:
        return sorted(self.tensors)

    def objects(self) -> list[str]:
        return []

    def read_object(self, key: str) -> io.BytesIO:
        raise KeyError(key)

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self.tensors[key].shape)

    def dtype(self, key: str) -> torch.dtype:
        return self.tensors[key].dtype

    def places(self, key: str) -> int:
        return 0

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        return self.tensors[key][place]


def rows(names: tuple[str, ...], *, by_head: bool) -> list[tuple[int, str, int]]:
    """(key head, part, number within it) of each row."""
    heads = range(HEADS)
    pairs = [(head, name) for head in heads for name in names] if by_head else [(h, n) for n in names for h in heads]
    return [(head, name, number) for head, name in pairs for number in range(WIDTHS[name])]


@pytest.mark.parametrize("begin", ["", "optimizer.state.exp_avg_sq.", "chained_0.optimizer.state.param."])
@pytest.mark.parametrize(("weight", "names"), [(MATRIX, tuple(WIDTHS)), (CHANNELS, ("query", "key", "value"))])
def test_rows_of_each_head_lie_together(begin: str, weight: str, names: tuple[str, ...]) -> None:
    known = {row: torch.rand(1, 4) for row in rows(names, by_head=True)}
    ours = torch.stack([known[row] for row in rows(names, by_head=True)])
    theirs = {
        f"{begin}{weight}.{name}": torch.stack([known[row] for row in rows((name,), by_head=False)]) for name in names
    }
    joined = JoinedWeights(Stored(theirs), MODEL)
    assert joined.keys() == [begin + weight]
    assert joined.shape(begin + weight) == tuple(ours.shape)
    assert torch.equal(joined.read(begin + weight, ()), ours)
    split = SplitWeights(Stored({begin + weight: ours}), MODEL)
    assert split.keys() == sorted(theirs)
    for key, part in theirs.items():
        assert split.shape(key) == tuple(part.shape)
        assert torch.equal(split.read(key, ()), part)


def test_parts_of_other_widths_are_not_joined() -> None:
    """Of as many rows in sum: keys and values could have each other's."""
    counts = {name: HEADS * width for name, width in WIDTHS.items()}
    counts |= {"query": counts["query"] - 1, "value": counts["value"] + 1}
    stored = Stored({f"{MATRIX}.{name}": torch.zeros(count, 4) for name, count in counts.items()})
    assert JoinedWeights(stored, MODEL).keys() == stored.keys()
    assert JoinedWeights(stored, None).keys() == [MATRIX]


def test_the_norm_of_heads_is_zero_centred_there_as_others_are() -> None:
    weight, norm = torch.tensor([0.5, -0.25]), "decoder.layers.0.mlp.linear_fc1.layer_norm_weight"
    moment, copy = f"optimizer.state.exp_avg.{NORM}", f"optimizer.state.param.{NORM}"
    stored = Stored(dict.fromkeys((NORM, norm, moment, copy), weight))
    plain = MODEL.model_copy(update={"apply_layernorm_1p": False})
    for view, model, change in (
        (JoinedWeights, MODEL, 1.0),
        (SplitWeights, MODEL, -1.0),
        (JoinedWeights, plain, 0.0),
        (SplitWeights, plain, 0.0),
    ):
        read = view(stored, model)
        for key in (NORM, copy):
            assert torch.equal(read.read(key, ()), weight + change)
        for key in (norm, moment):
            assert torch.equal(read.read(key, ()), weight)


def test_numbers_without_rows_are_no_parts() -> None:
    stored = Stored({f"{MATRIX}.{name}": torch.tensor(1.0) for name in WIDTHS})
    assert JoinedWeights(stored, MODEL).keys() == stored.keys()
