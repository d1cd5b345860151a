"""What a live cluster has, asked of its scheduler."""

from __future__ import annotations

import getpass
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import SchedulerError, UserError
from orchestrator.executors.slurm.commands import Answer, failure, run

_SINFO_FIELDS = "%P|%a|%D|%c|%m|%l|%s|%G"
_CONFIG = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)gpu((?::[^:,()]+)*)(?:\([^)]*\))?(?=,|$)")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)

Run = Callable[[Sequence[str]], Answer]
"""Runs a command where the cluster's commands are: here, or on its login node."""


@dataclass(frozen=True)
class Partition:
    """A partition: the most that one job can have of it. None is no limit."""

    name: str
    is_default: bool
    is_up: bool
    nodes: int
    gpus_per_node: int
    gpu_types: tuple[str, ...]
    """The commonest first; empty where GPUs have no types."""
    cpus_per_node: int
    memory_per_node: int
    """MB."""
    time_limit: int | None
    """Seconds."""


@dataclass(frozen=True)
class DiscoveredCluster:
    """A cluster as its scheduler describes it."""

    name: str
    version: str
    partitions: tuple[Partition, ...]
    has_accounting: bool
    accounts: tuple[str, ...] = ()
    """Those that this person may charge, the default first."""
    qos: str | None = None
    """The default of the default account."""


def discover(run: Run = run, user: str | None = None) -> DiscoveredCluster:
    """Ask the cluster where `run` runs commands, as that user; by default here, as this one.

    Raises SchedulerError, and UserError where there is no SLURM.
    """
    config = dict(_CONFIG.findall(_output(run, ["scontrol", "show", "config"])))
    partitions = partitions_in(_output(run, ["sinfo", "--noheader", "--exact", f"--format={_SINFO_FIELDS}"]))
    if not partitions:
        raise SchedulerError(
            "this cluster shows no partition that you may use: ask its administrators for access", code="no_partition"
        )
    has_accounting = config.get("AccountingStorageType") == "accounting_storage/slurmdbd"
    found = DiscoveredCluster(
        name=config.get("ClusterName", "cluster"),
        version=config.get("SLURM_VERSION", "of an unknown version"),
        partitions=partitions,
        has_accounting=has_accounting,
    )
    return _with_accounts(run, found, user or getpass.getuser()) if has_accounting else found


def _output(run: Run, command: list[str]) -> str:
    answer = run(command)
    if answer.code != 0:
        raise failure(answer)
    return answer.out


def partitions_in(text: str) -> tuple[Partition, ...]:
    """Of sinfo's lines, one for each kind of node in a partition, in the cluster's order."""
    kinds: dict[str, list[_Kind]] = {}
    for line in text.splitlines():
        fields = line.split("|", 7)
        if len(fields) == 8 and fields[0]:
            kind = _kind_of_node(fields)
            kinds.setdefault(kind.partition.name, []).append(kind)
    return tuple(_together(found) for found in kinds.values())


@dataclass(frozen=True)
class _Kind:
    """One kind of node in a partition."""

    partition: Partition
    types: Counter[str]
    """GPUs of each type in all of these nodes."""
    most_nodes: int | None
    """What a job may have of the whole partition."""


def _kind_of_node(fields: list[str]) -> _Kind:
    name, state, nodes, cpus, memory, limit, size, gres = (field.strip() for field in fields)
    types = _gpus(gres)
    most = size.rpartition("-")[2]
    partition = Partition(
        name=name.removesuffix("*"),
        is_default=name.endswith("*"),
        is_up=state == "up",
        nodes=_number(nodes),
        gpus_per_node=types.total(),
        gpu_types=(),
        cpus_per_node=_number(cpus),
        memory_per_node=_number(memory),
        time_limit=seconds_of(limit),
    )
    in_all = Counter({kind: count * _number(nodes) for kind, count in types.items() if kind})
    return _Kind(partition, in_all, int(most) if most.isdecimal() else None)


def _together(kinds: list[_Kind]) -> Partition:
    """A partition from the kinds of nodes in it."""
    parts = [kind.partition for kind in kinds]
    types = sum((kind.types for kind in kinds), Counter[str]())
    nodes = sum(part.nodes for part in parts)
    most = kinds[0].most_nodes
    return replace(
        parts[0],
        nodes=nodes if most is None else min(nodes, most),
        gpus_per_node=max(part.gpus_per_node for part in parts),
        gpu_types=tuple(kind for kind, _ in types.most_common()),
        cpus_per_node=max(part.cpus_per_node for part in parts),
        memory_per_node=max(part.memory_per_node for part in parts),
    )


def _gpus(gres: str) -> Counter[str]:
    """GPUs by type in `gpu:h200:4(S:0-1),nvme:1`; "" is the type of those that have none."""
    found: Counter[str] = Counter()
    for match in _GPUS.finditer(gres):
        words = match.group(1).split(":")[1:]
        count = int(words.pop()) if words and words[-1].isdecimal() else 1
        found[words[0] if words else ""] += count
    return found


def _number(text: str) -> int:
    """`16`, `16+`; 0 for what is none."""
    digits = re.match(r"\d+", text)
    return int(digits.group()) if digits else 0


def seconds_of(text: str) -> int | None:
    """Seconds of a time as SLURM writes it (`1-00:00:00`, `30:00`); None for no limit and for none known."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        numbers += [0] * (3 - len(numbers))
    elif len(numbers) == 1:
        numbers = [0, numbers[0], 0]
    hours, minutes, seconds = [0] * (3 - len(numbers)) + numbers
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _with_accounts(run: Run, found: DiscoveredCluster, user: str) -> DiscoveredCluster:
    """With what accounting knows of this person; as it is where accounting does not say."""
    try:
        default = _output(run, ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=DefaultAccount"])
        where = ["where", f"user={user}", f"cluster={found.name}", "format=Account,DefaultQOS"]
        associations = _output(run, ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", *where])
    except (SchedulerError, UserError):  # no sacctmgr here, or it does not answer
        return found
    of_account = dict(line.split("|", 1) for line in associations.splitlines() if "|" in line)
    first = default.strip()
    accounts = [first] if first in of_account else []
    accounts += [account for account in sorted(of_account) if account != first]
    return replace(found, accounts=tuple(accounts), qos=(of_account[accounts[0]] or None) if accounts else None)
