"""What measured steps say of a device: its efficiencies, moved as little as is needed to explain them.

Each efficiency may be off by a factor whose logarithm is normal around 0, and a measured time by a few per cent. The
likeliest factors are found by Gauss-Newton. So one run already corrects a device, and no number of them makes one of
its parts absurd to explain another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.time.kernels.accesses import Kernels
from orchestrator.planning.time.step import estimate_with
from orchestrator.spec.job import JobSpec

_FACTORS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("gemm", "gemm_at_power_limit"), 0.10),
    (("attention_forward", "attention_backward", "fused_attention_forward", "fused_attention_backward"), 0.10),
    (("memory",), 0.10),
    (("link",), 0.20),
    (("network",), 0.20),
    (("launch",), 0.20),
)
"""Efficiencies that go up or down together, and the standard deviation of the logarithm of their factor."""
_NOISE = 0.02
"""Standard deviation of the logarithm of a measured step time, and of what the model leaves out."""
_STEP = 1e-3
_ROUNDS = 6
_SETTLED = 1e-4
"""Change of a factor's logarithm that nobody would measure: after it there are no more rounds."""


@dataclass(frozen=True)
class Observation:
    """A step time that was measured."""

    job: JobSpec
    padded_vocab: int
    kernels: Kernels
    seconds: float


def fit(observations: Sequence[Observation], device: Device) -> Device:
    """The device with the efficiencies that explain the observations best."""
    x = [0.0] * len(_FACTORS)
    for _ in range(_ROUNDS):
        errors = _errors(observations, device, x)
        slopes = []
        for index in range(len(x)):
            moved = [value + (_STEP if other == index else 0.0) for other, value in enumerate(x)]
            changed = _errors(observations, device, moved)
            slopes.append([(new - old) / _STEP for new, old in zip(changed, errors, strict=True)])
        matrix = [
            [sum(a * b for a, b in zip(one, other, strict=True)) / _NOISE**2 for other in slopes] for one in slopes
        ]
        right = [-sum(a * b for a, b in zip(slope, errors, strict=True)) / _NOISE**2 for slope in slopes]
        for index, (_, width) in enumerate(_FACTORS):
            matrix[index][index] += 1 / width**2
            right[index] -= x[index] / width**2
        changes = _solved(matrix, right)
        x = [value + change for value, change in zip(x, changes, strict=True)]
        if max(map(abs, changes)) < _SETTLED:
            break
    return _moved(device, x)


def _errors(observations: Sequence[Observation], device: Device, x: Sequence[float]) -> list[float]:
    """Logarithm of the predicted over the measured time, of each observation."""
    moved = _moved(device, x)
    return [
        math.log(estimate_with(each.job, each.padded_vocab, each.kernels, moved).step_seconds / each.seconds)
        for each in observations
    ]


def _moved(device: Device, x: Sequence[float]) -> Device:
    changed = {
        name: getattr(device.efficiency, name) * math.exp(value)
        for (names, _), value in zip(_FACTORS, x, strict=True)
        for name in names
    }
    return replace(device, efficiency=replace(device.efficiency, **changed))


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a positive definite system, by elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [below - factor * above for below, above in zip(rows[row], rows[column], strict=True)]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution
