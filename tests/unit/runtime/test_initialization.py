"""Initial weights: the same at every layout, and distributed as they should be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow("one or two ranks build a network")
HIDDEN, LAYERS, VOCABULARY = 64, 4, 250
Weights = dict[str, Any]


def assemble(ranks: list[Any]) -> Weights:
    """Whole parameters from all ranks' slices, {key[layer]: array}; replicas must agree."""
    sizes: dict[str, list[int]] = {}
    slices = []
    for rank in ranks:
        for key, offset, stacked, values in rank["shards"]:
            data = np.array(values, dtype=np.float32)
            name = f"{key}{offset[:stacked]}"
            place = offset[stacked:]
            data = data.reshape(data.shape[len(data.shape) - len(place) :])
            ends = [start + size for start, size in zip(place, data.shape, strict=True)]
            sizes[name] = [max(pair) for pair in zip(sizes.get(name, ends), ends, strict=True)]
            slices.append((name, place, data))
    whole = {name: np.full(size, np.nan, dtype=np.float32) for name, size in sizes.items()}
    for name, place, data in slices:
        part = whole[name][tuple(slice(a, a + n) for a, n in zip(place, data.shape, strict=True))]
        assert np.isnan(part).all() or np.array_equal(part, data), f"replicas of {name} differ"
        part[...] = data
    assert not any(np.isnan(array).any() for array in whole.values()), "a slice is missing"
    return whole


@pytest.fixture(scope="module")
def alone(run_ranks: Any) -> Weights:
    return assemble(run_ranks("one", 1))


@pytest.mark.parametrize("name", ["tp2", "pp2-interleaved"])
def test_slices_are_those_of_the_whole(run_ranks: Any, alone: Weights, name: str) -> None:
    split = assemble(run_ranks(name, 2))
    assert split.keys() == alone.keys()
    for key, array in split.items():
        # How much padding there is depends on the layout.
        rows = VOCABULARY if key.startswith(("embedding.word", "output_layer")) else len(array)
        assert np.array_equal(array[:rows], alone[key][:rows]), key


def test_distribution(alone: Weights) -> None:
    for key, array in alone.items():
        if "norm" in key and "bias" not in key:
            assert (array == 1).all(), key
        elif "bias" in key:
            assert (array == 0).all(), key
        else:
            writes = "linear_proj.weight" in key or "linear_fc2.weight" in key
            expected = 0.02 / math.sqrt(2 * LAYERS) if writes else 0.02
            rows = array[:VOCABULARY] if key.startswith("embedding") else array
            assert rows.std() == pytest.approx(expected, rel=0.05), key
            assert abs(rows.mean()) < expected / 10, key


def test_padding_is_zero(alone: Weights) -> None:
    [table] = [array for key, array in alone.items() if key.startswith("embedding.word_embeddings")]
    assert len(table) > VOCABULARY
    assert (table[VOCABULARY:] == 0).all()
    assert (table[:VOCABULARY] != 0).any(axis=1).all()


def test_layers_and_seeds_differ(run_ranks: Any, alone: Weights) -> None:
    drawn = [array for key, array in alone.items() if "linear_qkv.weight" in key]
    assert len(drawn) == LAYERS
    assert len({array.tobytes() for array in drawn}) == LAYERS
    other = assemble(run_ranks("other-seed", 1))
    for key, array in alone.items():
        assert ("norm" in key or "bias" in key) == np.array_equal(array, other[key]), key
