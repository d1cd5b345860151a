"""Weights that two trainings have ended with, from their last checkpoints: what losses of few steps do not tell.

A step's loss and norm are those of the weights before its update, and a gradient that is wrong in few weights hardly
moves them.
"""

from __future__ import annotations

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir

OF_ADAM = 1e-5
"""How far weights may be apart in fp32 after a few steps of up to 3e-3 each. Adam divides a gradient by its size, so it
follows what rounding leaves where there is next to none: keys' biases without rotary positions were 2.3e-6 apart,
RACE's weights 1.6e-6, T5's 5.9e-7; others 2.4e-7, which is two units in the last place of a weight of 1.
"""
OF_SGD = 1e-6
"""It takes gradients as they are, and rounding with them: 1.2e-7."""
BITWISE = 1e-45
"""Less than the least difference of two fp32 numbers."""


def weights_apart(one: RunDir, other: RunDir, limit: float = OF_ADAM, without: str | None = None) -> dict[str, float]:
    """The weights whose largest difference is not below `limit`, with it. Their rows are those of both: vocabularies
    may be padded otherwise. `without`: one that is left out.
    """
    last, its_last = committed(one)[-1], committed(other)[-1]
    assert last.iteration == its_last.iteration
    expected, found = StoredWeights(last.path), StoredWeights(its_last.path)
    names = _weights(expected)
    assert names
    assert names == _weights(found)
    pairs = {name: (expected.read(name, ()), found.read(name, ())) for name in names if name != without}
    apart = {name: (a[: len(b)] - b[: len(a)]).abs().max().item() for name, (a, b) in pairs.items()}
    return {name: each for name, each in apart.items() if not each < limit}


def _weights(stored: StoredWeights) -> list[str]:
    return [name for name in [*stored.keys()] if not name.startswith(("optimizer.", "chained_"))]
