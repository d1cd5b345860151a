"""Which groups have a communicator before the first pass."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from orchestrator.runtime.network.communicators import connect
from orchestrator.runtime.processes.device import Device

GPU = Device("cuda", torch.device("cpu"), "nccl", "a GPU that computes here")
CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@dataclass(frozen=True)
class Buffer:
    data_parallel_group: str


@dataclass(frozen=True)
class Chunk:
    """Wrapped in data parallelism."""

    buffers: tuple[Buffer, ...]
    expert_parallel_buffers: tuple[Buffer, ...] = ()
    config: Any = field(default_factory=lambda: SimpleNamespace(calculate_per_token_loss=False))


@dataclass(frozen=True)
class Optimizer:
    norm: str

    def get_grad_stats_parallel_group(self) -> str:
        return self.norm


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    groups: list[str] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: groups.append(group))
    return groups


def test_each_group_once_and_the_norms_last(connected: list[str]) -> None:
    chunks = [Chunk((Buffer("replicas"),), (Buffer("of experts"),)), Chunk((Buffer("replicas"),))]
    connect(chunks, [Optimizer("all"), Optimizer("all"), Optimizer("experts' norms")], GPU)
    assert connected == ["replicas", "of experts", "all", "experts' norms"]


EVERYBODY = [0, 1, 2, 3]


@pytest.mark.slow("four ranks build a model")
def test_the_groups_of_two_stages_with_two_replicas(run_ranks: Any) -> None:
    """Gradients, and the norm. The stages share an embedding, whose group is used as it is made."""
    found = run_ranks("connected-stages", 4)
    assert found == [[[replicas, EVERYBODY], []] for replicas in ([0, 1], [0, 1], [2, 3], [2, 3])]


@pytest.mark.slow("two ranks build a model")
def test_the_groups_of_stages_that_divide_by_tokens(run_ranks: Any) -> None:
    """Each rank's own gradients, the pipeline, and the norm."""
    assert run_ranks("connected-by-tokens", 2) == [[[[rank], [0, 1], [0, 1]], []] for rank in (0, 1)]


@pytest.mark.slow("four ranks build a model")
def test_the_groups_of_replicas_that_shard_weights_in_pairs(run_ranks: Any) -> None:
    """A pair, those that keep the same elements, the stages, and all who count tokens."""
    for rank, (groups, late) in enumerate(run_ranks("connected-hybrid", 4)):
        pair = rank // 2 * 2
        assert groups[:4] == [[pair, pair + 1], [rank % 2, rank % 2 + 2], [rank], EVERYBODY]
        assert late == []


@pytest.mark.slow("four ranks build a model")
def test_the_groups_of_experts_on_two_ranks(run_ranks: Any) -> None:
    """Experts' gradients have replicas of their own."""
    for rank, (groups, late) in enumerate(run_ranks("connected-experts", 4)):
        assert groups[:2] == [EVERYBODY, [rank % 2, rank % 2 + 2]]
        assert late == []


def test_nothing_on_the_cpu(connected: list[str]) -> None:
    connect([Chunk((Buffer("replicas"),))], [Optimizer("all")], CPU)
    assert connected == []
