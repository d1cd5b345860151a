"""A commented cluster profile, from what a cluster says of itself."""

from __future__ import annotations

import re

from orchestrator.executors.slurm.discovery import DiscoveredCluster, Partition
from orchestrator.fields.docstrings import docstrings
from orchestrator.fields.formatting import as_yaml
from orchestrator.quantities import spec_duration
from orchestrator.spec.cluster import ClusterSpec

DAY = 86400
WIDTH = 120

_OPTIONS = {
    "qos": "long",
    "gpu": "H100",
    "layers": "torch",
    "memory_per_node": "0",
    "exclusive": "true",
    "exclude": '["gpu[001-003]"]',
    "constraint": "ib",
    "options": "[--mail-type=FAIL]",
    "login": "me@login.example.org",
    "login_folder": "/shared/me/project",
    "modules": "[cuda/12.4]",
    "virtual_env": "/shared/envs/train",
    "setup": "[ulimit -l unlimited]",
    "env": "{NCCL_SOCKET_IFNAME: ib0}",
    "container": "{runtime: pyxis, image: /shared/images/train.sqsh}",
}
"""Shown commented out when they are not set, with a value as YAML for each."""


def default_partition(found: DiscoveredCluster) -> Partition:
    """Where jobs go by default: the cluster's own default if it has GPUs or nothing has, else where most GPUs are."""
    usable = [partition for partition in found.partitions if partition.is_up] or list(found.partitions)
    own = next((partition for partition in usable if partition.is_default), usable[0])
    most = max(usable, key=lambda partition: partition.nodes * partition.gpus_per_node)
    return own if own.gpus_per_node or not most.gpus_per_node else most


def profile_text(found: DiscoveredCluster, partition: Partition, name: str, login: str | None = None) -> str:
    """YAML of a profile whose jobs go to that partition, submitted through a login node if one is given."""
    values = _values(found, partition, name)
    if login is not None:
        values["login"] = as_yaml(login)
    lines = [
        _plain(f"# Profile of {found.name}, a cluster with SLURM {found.version}, as its scheduler describes it."),
        "# `orchestrator cluster init` wrote this; correct and extend it.",
    ]
    for field in ClusterSpec.model_fields:
        if field == "partitions":
            lines += ["", *_partition_lines(found), ""]
        elif field in values:
            lines.append(_line(field, values[field], _other_choices(field, found, partition)))
    return "\n".join([*lines, "", "# What else there is:", *_options(values)]) + "\n"


def _values(found: DiscoveredCluster, partition: Partition, name: str) -> dict[str, str]:
    """Field -> YAML of what is set."""
    gpus = partition.gpus_per_node
    values = {"name": as_yaml(name), "partition": as_yaml(partition.name)}
    if found.accounts:
        values["account"] = as_yaml(found.accounts[0])
    if found.qos:
        values["qos"] = as_yaml(found.qos)
    values["gpu_request"] = "gres" if gpus else "none"
    if partition.gpu_types:
        values["gpu_type"] = as_yaml(partition.gpu_types[0])
    if gpus and partition.cpus_per_node >= gpus:
        values["cpus_per_gpu"] = str(partition.cpus_per_node // gpus)
    values["time"] = spec_duration(min(partition.time_limit or DAY, DAY))
    if gpus and (cpu := next((other for other in found.partitions if other.is_up and not other.gpus_per_node), None)):
        values["data_partition"] = as_yaml(cpu.name)
    return values


def _partition_lines(found: DiscoveredCluster) -> list[str]:
    lines = ["partitions:  # The most that one job can have; unknown limits are not checked"]
    for partition in found.partitions:
        notes = [
            "the cluster's default" if partition.is_default else "",
            "" if partition.is_up else "not up now",
            f"GPUs: {', '.join(partition.gpu_types)}" if partition.gpu_types else "",
        ]
        comment = "; ".join(filter(None, notes))
        lines.append(f"  {as_yaml(partition.name)}:{f'  # {_plain(comment)}' if comment else ''}")
        limit = f"time_limit: {spec_duration(partition.time_limit)}" if partition.time_limit else "# no time limit"
        known = {
            "nodes": partition.nodes or None,
            "gpus_per_node": partition.gpus_per_node,
            "cpus_per_node": partition.cpus_per_node or None,
            "memory_per_node": partition.memory_per_node or None,
        }
        lines += [f"    {key}: {value}" for key, value in known.items() if value is not None]
        lines.append(f"    {limit}")
    return lines


def _other_choices(field: str, found: DiscoveredCluster, partition: Partition) -> str:
    others = {
        "partition": [other.name for other in found.partitions if other.name != partition.name],
        "account": list(found.accounts[1:]),
        "gpu_type": list(partition.gpu_types[1:]),
    }.get(field, [])
    return f"; others: {', '.join(others)}" if others else ""


def _options(values: dict[str, str]) -> list[str]:
    return [f"# {_line(field, example)}" for field, example in _OPTIONS.items() if field not in values]


def _line(field: str, value: str, more: str = "") -> str:
    """`key: value  # description`, the description's first sentence where it fits."""
    description = docstrings(ClusterSpec)[field].replace("\n", " ")
    comment = _plain(re.split(r"\.(?:\s|$)", description, maxsplit=1)[0] + more)
    line = f"{field}: {value}"
    return f"{line}  # {comment}" if len(line) + len(comment) + 6 <= WIDTH else line


def _plain(comment: str) -> str:
    return "".join(character if character.isprintable() else " " for character in comment)
