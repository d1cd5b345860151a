"""Who is at fault, from what the nodes said of themselves and of each other. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

_SHOWN = 8


@dataclass(frozen=True)
class Limits:
    """What still counts as healthy. `clock_skew` in seconds; `free_memory` is a share of each GPU's memory; `free_disk`
    and `free_tmp` in bytes.
    """

    clock_skew: float = 2.0
    free_memory: float = 0.9
    free_disk: int = 1 << 30
    free_tmp: int = 100 << 20


@dataclass(frozen=True)
class Facts:
    """What one node found out about itself. `faults` are sentences without their subject, the node.

    `clock_offset`: its clock minus that of node 0, in seconds, known to within `clock_error`.
    """

    name: str
    faults: Sequence[str] = ()
    device: Literal["auto", "cuda", "cpu"] = "auto"
    gpus: int = 0
    gpus_needed: int = 0
    clock_offset: float = 0.0
    clock_error: float = 0.0


@dataclass(frozen=True)
class Pair:
    """An all-reduce between two nodes. `gigabytes_per_second` is None when it failed, and `message` says how."""

    nodes: tuple[int, int]
    gigabytes_per_second: float | None
    message: str = ""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. `nodes`: the one at fault, or the two that do not reach each other."""

    nodes: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check. `untested`: pairs for which no time was left."""

    names: Sequence[str]
    faults: Sequence[Fault]
    facts: Mapping[int, Facts] = field(default_factory=dict)
    pairs: Sequence[Pair] = ()
    untested: int = 0

    @property
    def healthy(self) -> bool:
        return not self.faults

    @property
    def nodes_at_fault(self) -> list[str]:
        """Names of the nodes that are certainly at fault: to leave out of the next start."""
        return sorted({fault.nodes[0] for fault in self.faults if len(fault.nodes) == 1})

    @property
    def line(self) -> str:
        """The verdict in one line."""
        return f"health check {'passed' if self.healthy else 'failed'}: {self.message}"

    @property
    def message(self) -> str:
        """What was found, in one line."""
        if self.faults:
            more = len(self.faults) - _SHOWN
            shown = "; ".join(fault.message for fault in self.faults[:_SHOWN])
            return shown + (f"; and {more} more" if more > 0 else "")
        count = len(self.names)
        line = f"{count} node{'s' if count > 1 else ''}"
        slowest = min(self.pairs, key=lambda pair: pair.gigabytes_per_second or 0.0, default=None)
        if slowest is not None:
            a, b = (self.names[node] for node in slowest.nodes)
            line += f", slowest pair {a} and {b} at {slowest.gigabytes_per_second:.2f} GB/s"
        return line + (f"; no time was left for {self.untested} pairs" if self.untested else "")

    def to_json(self) -> dict[str, Any]:
        """The report: for programs, and for people who want to know more."""
        return {
            "healthy": self.healthy,
            "message": self.message,
            "nodes_at_fault": self.nodes_at_fault,
            "faults": [asdict(fault) for fault in self.faults],
            "nodes": [
                {"rank": rank, **asdict(self.facts.get(rank) or Facts(name)), "answered": rank in self.facts}
                for rank, name in enumerate(self.names)
            ],
            "pairs": [{**asdict(pair), "nodes": [self.names[node] for node in pair.nodes]} for pair in self.pairs],
            "untested_pairs": self.untested,
        }


def node_faults(names: Sequence[str], came: Iterable[int], facts: Mapping[int, Facts], limits: Limits) -> list[Fault]:
    """What is wrong with single nodes: absent, silent, too few GPUs, a wrong clock, and what they said themselves."""
    came, faults = set(came), []
    # With `auto` a node that has lost its GPUs would train on its CPU beside others that have theirs.
    on_gpus = any((fact.gpus and fact.device != "cpu") or fact.device == "cuda" for fact in facts.values())
    for rank, name in enumerate(names):
        fact = facts.get(rank)
        if fact is None:
            said = "joined, but never reported its health" if rank in came else "never came"
            faults.append(Fault((name,), f"{name} {said}"))
            continue
        faults += [Fault((name,), f"{name} {text}") for text in fact.faults]
        if on_gpus and fact.gpus < fact.gpus_needed:
            has = f"{fact.gpus} GPU{'' if fact.gpus == 1 else 's'}"
            faults.append(Fault((name,), f"{name} has {has}, the job needs {fact.gpus_needed} on each node"))
    return faults + _clock_faults(names, facts, limits.clock_skew)


def _clock_faults(names: Sequence[str], facts: Mapping[int, Facts], limit: float) -> list[Fault]:
    """Node 0's clock is the measure, unless most others agree that it is node 0's that is wrong."""
    offsets = {rank: fact.clock_offset for rank, fact in facts.items()}
    right = [rank for rank, offset in offsets.items() if abs(offset) <= limit]
    reference = 0.0 if 2 * len(right) >= len(offsets) or not offsets else statistics.median_low(offsets.values())
    return [
        Fault((names[rank],), f"the clock of {names[rank]} is off by {offset - reference:+.1f} s")
        for rank, offset in sorted(offsets.items())
        if abs(offset - reference) - facts[rank].clock_error > limit
    ]


def blamed(pairs: Iterable[Pair]) -> set[int]:
    """Nodes that failed with at least two partners and with most of theirs, unless that is true of half of all nodes:
    then it is the network between them.
    """
    pairs = list(pairs)
    tested = Counter(node for pair in pairs for node in pair.nodes)
    failed = Counter(node for pair in pairs if pair.gigabytes_per_second is None for node in pair.nodes)
    suspects = {node for node, count in failed.items() if count >= 2 and 2 * count > tested[node]}
    return suspects if 2 * len(suspects) < len(tested) else set()


def pair_faults(names: Sequence[str], pairs: Sequence[Pair], silent: Iterable[int]) -> list[Fault]:
    """What is wrong between nodes. `silent`: nodes that stopped answering during the all-reduces."""
    silent = set(silent)
    faults = [Fault((names[node],), f"{names[node]} stopped answering in the all-reduces") for node in sorted(silent)]
    failed = [pair for pair in pairs if pair.gigabytes_per_second is None and not silent & set(pair.nodes)]
    guilty = blamed(pair for pair in pairs if not silent & set(pair.nodes))
    for node in sorted(guilty):
        own = [pair for pair in failed if node in pair.nodes]
        partners = [names[other] for pair in own for other in pair.nodes if other != node]
        message = f"{names[node]} fails in the all-reduce with {_listed(partners)} ({own[0].message})"
        faults.append(Fault((names[node],), message))
    for pair in failed:
        if not guilty & set(pair.nodes):
            a, b = (names[node] for node in pair.nodes)
            faults.append(Fault((a, b), f"the all-reduce between {a} and {b} fails ({pair.message})"))
    return faults


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown.append(f"{len(names) - _SHOWN} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
