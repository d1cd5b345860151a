"""Muon against torch's, and against the polynomial of its iterations on singular values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from orchestrator.runtime.optimizers.matrices import Matrix
from orchestrator.runtime.optimizers.matrix_exchange import HeldMatrix, MatrixExchange
from orchestrator.runtime.optimizers.muon import Muon
from orchestrator.runtime.optimizers.newton_schulz import orthogonalize, orthogonalize_all
from orchestrator.spec.sections.optimizer import NS_COEFFICIENTS, OptimizerSpec

SHAPES = [(48, 32), (32, 48), (32, 32)]


def drawn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("name", NS_COEFFICIENTS)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_iterations_are_a_polynomial_of_singular_values(name: str, rows: int, columns: int) -> None:
    spec = OptimizerSpec(lr=1.0, muon_coefficient_type=name, muon_extra_scale_factor=1.0, muon_scale_mode="spectral")
    matrix = drawn(rows, columns, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / matrix.norm()
    known = NS_COEFFICIENTS[name]
    for step in range(5):
        a, b, c = known[step % len(known)]
        values = a * values + b * values**3 + c * values**5
    expected = max(rows, columns) ** 0.5 * left @ torch.diag(values) @ right
    [found] = orthogonalize(matrix[None], spec)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "scale"), [("spectral", 48**0.5), ("unit_rms_norm", 1.5**0.5), ("shape_scaling", 1.5**0.5)]
)
def test_scales_of_a_shape(mode: Any, scale: float) -> None:
    plain = OptimizerSpec(lr=1.0, muon_scale_mode="shape_scaling", muon_extra_scale_factor=1.0)
    [of_square] = orthogonalize_all([drawn(48, 32).T], plain)  # wide: its scale is 1
    [found] = orthogonalize_all([drawn(48, 32)], OptimizerSpec(lr=1.0, muon_scale_mode=mode, muon_extra_scale_factor=3))
    torch.testing.assert_close(found.T, 3 * scale * of_square, rtol=1e-5, atol=1e-5)


def test_updates_are_as_large_as_those_of_adam() -> None:
    """The root mean square of Adam's is 0.2 to 0.4."""
    for shape in SHAPES:
        [update] = orthogonalize_all([drawn(*shape)], OptimizerSpec(lr=1.0))
        assert 0.15 < update.square().mean().sqrt() < 0.25


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_steps_are_those_of_torch(nesterov: bool, rows: int, columns: int) -> None:
    """torch's iterations are in bf16, so only close; the same for all directions of the gradient."""
    spec = OptimizerSpec(lr=1.0, muon_coefficient_type="simple", muon_use_nesterov=nesterov)
    ours, theirs = (torch.nn.Parameter(drawn(rows, columns)) for _ in range(2))
    options: Any = {"lr": 0.02, "weight_decay": 0.1}
    optimizer = Muon([ours], **options)
    matrix = Matrix((rows, columns), None, (), None)
    optimizer.orthogonalize([HeldMatrix(matrix, ours, (rows * columns,))], None, spec)
    optimizer.prepare()
    reference = torch.optim.Muon([theirs], momentum=0.95, nesterov=nesterov, adjust_lr_fn="match_rms_adamw", **options)
    for step in range(6):
        ours.grad = drawn(rows, columns, seed=10 + step)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    moved = (theirs - drawn(rows, columns)).abs().max()
    assert (ours - theirs).abs().max() < 0.01 * moved
    assert set(optimizer.state[ours]) == {"exp_avg"}


def test_coupled_decay_is_part_of_the_gradient() -> None:
    spec = OptimizerSpec(lr=1.0)
    found = []
    for decay in (0.0, 0.5):
        parameter = torch.nn.Parameter(drawn(4, 4))
        optimizer = Muon([parameter], lr=0.1, weight_decay=decay, adam_w_mode=False)
        optimizer.orthogonalize([HeldMatrix(Matrix((4, 4), None, (), None), parameter, (16,))], None, spec)
        parameter.grad = drawn(4, 4, seed=2) + (0.5 - decay) * drawn(4, 4)
        optimizer.step()
        found.append(parameter.detach())
    torch.testing.assert_close(*found)


def test_fused_matrices_are_orthogonalised_apart() -> None:
    """Two groups of two queries, a key and a value of 4 rows each."""
    matrix = Matrix((32, 24), None, (8, 4, 4), None)
    weight = drawn(32, 24)
    apart = matrix.joined([weight.reshape(-1)])
    assert [tuple(each.shape) for each in apart] == matrix.shapes == [(16, 24), (8, 24), (8, 24)]
    assert torch.equal(apart[1], torch.cat([weight[8:12], weight[24:28]]))
    assert torch.equal(matrix.parts(apart)[0], weight)


class Group:
    """Ranks of a process group, of which this is the first."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return 0


def test_ranks_share_the_work_in_rounds() -> None:
    """Every round has all four owners do the same; a matrix that is whole on every tensor-parallel rank is done by
    each.
    """
    tensor_ranks = Group(2)
    shape = (1024, 4096)  # of a rank, of a matrix of 8 M elements
    split = Matrix(shape, 0, (), tensor_ranks)
    held = HeldMatrix(split, torch.empty(0), (shape[0] * shape[1] // 2,) * 2)
    whole = HeldMatrix(Matrix((8, 8), None, (), tensor_ranks), torch.empty(0), (32, 32))
    exchange = MatrixExchange([whole, *[held] * 32], Group(2))
    assert [len(each) for each in exchange.rounds] == [16, 16, 1]
    for matrices in exchange.rounds[1:2]:
        owners = Counter((each.replica, each.rank) for each in matrices)
        assert owners == {(0, 0): 4, (0, 1): 4, (1, 0): 4, (1, 1): 4}
    assert [each.matrix for each in exchange.rounds[0]].count(whole.matrix) == 1
