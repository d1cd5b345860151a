"""Which rank orthogonalises which matrix, and bringing the parts of matrices there and back.

Each replica of a distributed optimizer has an interval of the elements of a weight, and each tensor-parallel rank a
part of it. Every matrix goes to one of all these ranks and comes back, by two exchanges each way: between the replicas,
and between the tensor-parallel ranks. What is sent does not depend on values, so the host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from orchestrator.planning.newton_schulz import ROUND_ELEMENTS, newton_schulz_flops
from orchestrator.runtime.optimizers.matrices import Matrix

Flat = list[torch.Tensor]
"""Tensors of one dimension."""


@dataclass(frozen=True)
class HeldMatrix:
    """A matrix, and what this replica has of its part."""

    matrix: Matrix
    parameter: torch.Tensor
    """Of the optimizer; of no elements where this replica has none."""
    counts: tuple[int, ...]
    """Elements that each replica has, in order."""


@dataclass(frozen=True)
class OwnedMatrix(HeldMatrix):
    """One whose owner is settled."""

    replica: int
    rank: int
    """The tensor-parallel one. Where each has all of a matrix, each orthogonalises it."""


class MatrixExchange:
    """The matrices of one optimizer, and the ranks that share them.

    The matrices have one group of tensor-parallel ranks. `replicas`: those that share the state; None where each has
    all of it. All of them have the same matrices in the same order.
    """

    def __init__(self, matrices: Sequence[HeldMatrix], replicas: Any) -> None:
        self._replicas = replicas
        self._tensor_ranks = matrices[0].matrix.group
        self.rounds = list(_rounds(matrices, _size(replicas), _size(self._tensor_ranks)))
        """Matrices that are orthogonalised at a time, which bounds the memory that it takes."""

    def orthogonalized(
        self,
        matrices: Sequence[OwnedMatrix],
        updates: Sequence[torch.Tensor],
        orthogonalize: Callable[[Flat], Flat],
    ) -> Flat:
        """What this replica has of the orthogonalised matrices of a round.

        `updates`: what it has of the matrices themselves, flat. `orthogonalize`: of matrices [rows, columns].
        """
        replicas, own = range(_size(self._replicas)), _rank(self._replicas)
        by_owner = [[i for i, each in enumerate(matrices) if each.replica == replica] for replica in replicas]
        mine = [matrices[i] for i in by_owner[own]]
        sent = [[updates[i] for i in indices] for indices in by_owner]
        counts = [[each.counts[replica] for each in mine] for replica in replicas]
        received = _swap(sent, counts, self._replicas, updates[0])
        parts = [torch.cat(pieces) for pieces in zip(*received, strict=True)]
        done = self._over_tensor_ranks(mine, parts, orthogonalize)
        pieces = [torch.split(part, list(each.counts)) for part, each in zip(done, mine, strict=True)]
        sent = [[piece[replica] for piece in pieces] for replica in replicas]
        counts = [[matrices[i].counts[own] for i in indices] for indices in by_owner]
        returned = _swap(sent, counts, self._replicas, updates[0])
        return _in_order(by_owner, returned)

    def _over_tensor_ranks(
        self, matrices: Sequence[OwnedMatrix], parts: Flat, orthogonalize: Callable[[Flat], Flat]
    ) -> Flat:
        """The same of matrices of which this replica has all, whose parts lie on the tensor-parallel ranks."""
        whole = [i for i, each in enumerate(matrices) if each.matrix.split_dim is None]
        split = [i for i, each in enumerate(matrices) if each.matrix.split_dim is not None]
        if not matrices:
            return []
        group = self._tensor_ranks if split else None
        ranks = range(_size(group))
        by_owner = [[i for i in split if matrices[i].rank == rank] for rank in ranks]
        mine = by_owner[_rank(group)]
        sent = [[parts[i] for i in indices] for indices in by_owner]
        received = _swap(sent, [[matrices[i].matrix.numel for i in mine] for _ in ranks], group, parts[0])
        of_each = [*zip(*received, strict=True), *((parts[i],) for i in whole)]
        joined = [matrices[i].matrix.joined(each) for i, each in zip([*mine, *whole], of_each, strict=True)]
        flat = iter(orthogonalize([matrix for each in joined for matrix in each]))
        done = [
            [part.reshape(-1) for part in matrices[i].matrix.parts([next(flat) for _ in each])]
            for i, each in zip([*mine, *whole], joined, strict=True)
        ]
        sent = [[each[rank] for each in done[: len(mine)]] for rank in ranks]
        counts = [[matrices[i].matrix.numel for i in indices] for indices in by_owner]
        returned = _swap(sent, counts, group, parts[0])
        return _in_order([*by_owner, whole], [*returned, [each for [each] in done[len(mine) :]]])


def _swap(sent: Sequence[Flat], counts: Sequence[Sequence[int]], group: Any, like: torch.Tensor) -> list[Flat]:
    """Send tensors to each rank of a group, and receive others of so many elements from each. `like`: one of its dtype
    and device.
    """
    if group is None or group.size() == 1:
        return list(sent)
    buffer = torch.cat([like.new_empty(0), *(each for to in sent for each in to)])
    received = like.new_empty(sum(map(sum, counts)))
    sizes = [sum(each.numel() for each in to) for to in sent]
    distributed.all_to_all_single(received, buffer, list(map(sum, counts)), sizes, group=group)
    from_each = torch.split(received, list(map(sum, counts)))
    return [list(torch.split(part, list(each))) for part, each in zip(from_each, counts, strict=True)]


def _in_order(indices: Sequence[Sequence[int]], found: Sequence[Flat]) -> Flat:
    """All of `found` by their indices."""
    pairs = [pair for some, each in zip(indices, found, strict=True) for pair in zip(some, each, strict=True)]
    return [each for _, each in sorted(pairs, key=lambda pair: pair[0])]


def _rounds(matrices: Sequence[HeldMatrix], replicas: int, ranks: int) -> Iterator[list[OwnedMatrix]]:
    """Matrices in rounds of `ROUND_ELEMENTS` for each rank."""
    some: list[HeldMatrix] = []
    elements = 0
    for each in matrices:
        count = each.matrix.numel * ranks
        if some and elements + count > ROUND_ELEMENTS * replicas * ranks:
            yield _shared_out(some, replicas, ranks)
            some, elements = [], 0
        some.append(each)
        elements += count
    if some:
        yield _shared_out(some, replicas, ranks)


def _shared_out(matrices: Sequence[HeldMatrix], replicas: int, ranks: int) -> list[OwnedMatrix]:
    """Each to the rank that has the least to do, the largest first."""
    loads = [[0] * ranks for _ in range(replicas)]
    owned = {}
    flops = [sum(newton_schulz_flops(*shape, 1) for shape in each.matrix.shapes) for each in matrices]
    for i in sorted(range(len(matrices)), key=lambda i: -flops[i]):
        held = matrices[i]
        replica = min(range(replicas), key=lambda each: sum(loads[each]))
        rank = min(range(ranks), key=loads[replica].__getitem__)
        for busy in range(ranks) if held.matrix.split_dim is None else (rank,):
            loads[replica][busy] += flops[i]
        owned[i] = OwnedMatrix(held.matrix, held.parameter, held.counts, replica, rank)
    return [owned[i] for i in range(len(matrices))]


def _size(group: Any) -> int:
    return 1 if group is None else int(group.size())


def _rank(group: Any) -> int:
    return 0 if group is None else int(group.rank())
