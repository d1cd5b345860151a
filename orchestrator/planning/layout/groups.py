"""The groups of ranks that exchange data, and which of them cross from node to node.

Every group is an arithmetic sequence of ranks, so that a kind is a few numbers: no rank is listed before it is asked
for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class GroupPlacement(NamedTuple):
    """How the groups of one kind lie on the nodes."""

    kind: str
    size: int
    """Ranks in a group."""
    groups: int
    crossing: int
    """Groups with ranks on more than one node."""
    fewest_nodes: int
    most_nodes: int
    """Nodes that a group has ranks on."""

    def __str__(self) -> str:
        """`768 of 768 groups cross nodes`."""
        if self.size == 1:
            return "no groups"
        if not self.crossing:
            return f"{_groups(self.groups)}, {'it stays on its node' if self.groups == 1 else 'none crosses nodes'}"
        nodes = f"{self.fewest_nodes} to {self.most_nodes}" if self.fewest_nodes < self.most_nodes else self.most_nodes
        return f"{self.crossing:,} of {_groups(self.groups)} {_cross(self.crossing)} nodes, {nodes} nodes each"


def _groups(count: int) -> str:
    return f"{count:,} group{'s' if count != 1 else ''}"


def _cross(count: int) -> str:
    return "cross" if count != 1 else "crosses"


@dataclass(frozen=True)
class GroupKind:
    """All groups of one kind. In every block of `block` consecutive ranks the first `width` each begin a group; it
    has every `stride`-th rank from there on.
    """

    name: str
    exchanges: str
    """What its ranks send each other."""
    size: int
    stride: int
    width: int
    block: int
    world_size: int
    processes_per_node: int

    @property
    def count(self) -> int:
        """How many groups there are."""
        return self.world_size // self.block * self.width

    def __iter__(self) -> Iterator[range]:
        """The ranks of each group, in megatron-core's order within the group."""
        for start in range(0, self.world_size, self.block):
            for first in range(start, start + self.width):
                yield range(first, first + self.size * self.stride, self.stride)

    def crossing(self) -> GroupPlacement:
        """How its groups lie on the nodes."""
        per_node = self.processes_per_node
        nodes = [self._nodes(group, per_node) for group in self]
        return GroupPlacement(
            self.name, self.size, self.count, sum(number > 1 for number in nodes), min(nodes), max(nodes)
        )

    def _nodes(self, group: range, per_node: int) -> int:
        if self.stride >= per_node:
            return len(group)
        return group[-1] // per_node - group[0] // per_node + 1  # its steps skip no node

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the ranks are not listed."""
        crossing = self.crossing()
        return {
            "size": self.size,
            "stride": self.stride,
            "groups": self.count,
            "crossing_nodes": crossing.crossing,
            "nodes_per_group": [crossing.fewest_nodes, crossing.most_nodes],
            "exchanges": self.exchanges,
        }


def group_kinds(
    *, tp: int, cp: int, ep: int, dp: int, pp: int, processes_per_node: int, etp: int | None = None
) -> dict[str, GroupKind]:
    """Every kind of group of a layout tp-cp-ep-dp-pp: tp, cp, ep, dp and pp always; `dp_cp`, over which gradients are
    reduced, with CP > 1; `expert_dp`, the same of experts, where other ranks hold the same experts than hold the same
    other weights; `expert_tp` where experts are split otherwise than the rest (ETP, which is TP by default);
    `embedding`, first and last stage, with PP > 1.
    """
    world = tp * cp * dp * pp
    stage = tp * cp * dp
    etp = tp if etp is None else etp

    def kind(name: str, exchanges: str, size: int, stride: int) -> GroupKind:
        return GroupKind(name, exchanges, size, stride, stride, size * stride, world, processes_per_node)

    kinds = [
        kind("tp", "activations, in every layer", tp, 1),
        kind("cp", "keys and values, in every layer", cp, tp),
        kind("ep", "tokens, in every layer with experts", ep, etp),
        kind("dp", "gradients and parameters, once a step", dp, tp * cp),
        kind("pp", "activations at the borders of stages, for every micro-batch", pp, stage),
    ]
    if cp > 1:
        kinds.append(kind("dp_cp", "gradients and parameters, once a step", dp * cp, tp))
    if etp != tp:
        kinds.append(kind("expert_tp", "tokens and what becomes of them, in every layer with experts", etp, 1))
    if etp * ep != tp:
        same = stage // (etp * ep)
        kinds.append(kind("expert_dp", "gradients and parameters of experts, once a step", same, etp * ep))
    if pp > 1:
        last = (pp - 1) * stage
        tied = "gradients of a tied embedding table, once a step"
        kinds.append(GroupKind("embedding", tied, 2, last, stage, world, world, processes_per_node))
    return {each.name: each for each in kinds}
