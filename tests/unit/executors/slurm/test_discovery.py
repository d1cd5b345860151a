"""What a cluster says of itself, and the profile that is made of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused

from orchestrator.cluster_profiles import PROFILE
from orchestrator.errors import SchedulerError
from orchestrator.executors.slurm.discovery import DiscoveredCluster, Partition, discover, partitions_in, seconds_of
from orchestrator.executors.slurm.profile_text import default_partition, profile_text
from orchestrator.spec.cluster import ClusterSpec, PartitionSpec
from orchestrator.spec.loading import load_document_text

CONFIG = """\
Configuration data as of 2026-11-20T16:20:01
AccountingStorageEnforce = none
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = alps
GresTypes               = gpu,shard
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 24.11.5
Slurmctld(primary) at host is UP
"""
SINFO = """\
cpu*|up|12|128|257000|12:00:00|1-infinite|(null)
gpu|up|60|96|1031000|1-00:00:00|1-16|gpu:h200:8(S:0-1),nvme:1
gpu|up|4|64|515000|1-00:00:00|1-16|gpu:a100:4(S:0,2)
old|drain|2+|40|192000|infinite|1-infinite|gpu:4,shard:v100:8
mps|inact|1|8|1000+|30:00|1|gpu
"""


def replies(slurm: Any, config: str = CONFIG, sinfo: str = SINFO) -> None:
    slurm.says("scontrol", config)
    slurm.says("sinfo", sinfo)
    slurm.says(
        "sacctmgr", delay='case "$*" in *DefaultAccount) echo research;; *) printf "a|\\nresearch|long\\n";; esac'
    )


def spec_of(text: str) -> ClusterSpec:
    return load_document_text(text, "profile.yaml", PROFILE).value


def test_a_whole_cluster(fake_slurm: Any) -> None:
    replies(fake_slurm)
    found = discover()
    assert (found.name, found.version, found.has_accounting) == ("alps", "24.11.5", True)
    assert (found.accounts, found.qos) == (("research", "a"), "long")
    cpu, gpu, old, mps = found.partitions
    assert cpu == Partition("cpu", True, True, 12, 0, (), 128, 257000, 12 * 3600)
    assert gpu == Partition("gpu", False, True, 16, 8, ("h200", "a100"), 96, 1031000, 86400)
    assert (old.nodes, old.gpus_per_node, old.gpu_types, old.time_limit, old.is_up) == (2, 4, (), None, False)
    assert (mps.gpus_per_node, mps.memory_per_node, mps.time_limit) == (1, 1000, 1800)


def test_its_profile(fake_slurm: Any) -> None:
    replies(fake_slurm)
    found = discover()
    partition = default_partition(found)
    assert partition.name == "gpu", "the cluster's default has no GPUs"
    profile = spec_of(profile_text(found, partition, "mine"))
    assert profile == ClusterSpec(
        name="mine",
        partition="gpu",
        partitions={
            "cpu": PartitionSpec(
                nodes=12, gpus_per_node=0, cpus_per_node=128, memory_per_node=257000, time_limit=43200
            ),
            "gpu": PartitionSpec(
                nodes=16, gpus_per_node=8, cpus_per_node=96, memory_per_node=1031000, time_limit=86400
            ),
            "old": PartitionSpec(nodes=2, gpus_per_node=4, cpus_per_node=40, memory_per_node=192000),
            "mps": PartitionSpec(nodes=1, gpus_per_node=1, cpus_per_node=8, memory_per_node=1000, time_limit=1800),
        },
        account="research",
        qos="long",
        gpu_request="gres",
        gpu_type="h200",
        cpus_per_gpu=12,
        time=86400,
        data_partition="cpu",
    )


def test_every_option_that_is_shown_is_legal(fake_slurm: Any) -> None:
    replies(fake_slurm)
    found = discover()
    text = profile_text(found, default_partition(found), "mine")
    assert max(map(len, text.splitlines())) <= 120
    assert "account: research  # Account that is charged" in text
    assert "# modules: [cuda/12.4]  # " in text
    assert not re.search(r"(?m)#\s*(;|$)", text), "a comment says something"
    shown = re.sub(r"(?m)^# ([a-z_]+: )", r"\1", text)
    assert shown != text
    profile = spec_of(shown)
    missing = set(ClusterSpec.model_fields) - profile.model_fields_set
    assert missing == {"python", "template"}


def test_the_one_type_of_its_gpus_is_what_is_planned_for(fake_slurm: Any) -> None:
    replies(fake_slurm, sinfo="gpu*|up|2|96|1031000|1-00:00:00|1-infinite|gpu:h200:8\n")
    found = discover()
    assert spec_of(profile_text(found, default_partition(found), "mine")).gpu_type == "h200"


def test_a_cluster_without_gpus_and_accounts(fake_slurm: Any) -> None:
    config = CONFIG.replace("accounting_storage/slurmdbd", "accounting_storage/none")
    replies(fake_slurm, config, "debug*|up|4|8|16000|infinite|1-infinite|(null)\n")
    found = discover()
    assert fake_slurm.calls("sacctmgr") == []
    profile = spec_of(profile_text(found, default_partition(found), "small"))
    assert (profile.gpu_request, profile.cpus_per_gpu, profile.account) == ("none", None, None)
    assert (profile.partition, profile.time, profile.data_partition) == ("debug", 86400, None)


@pytest.mark.parametrize("trouble", ["missing", "failing"])
def test_accounts_that_cannot_be_asked_for(fake_slurm: Any, trouble: str) -> None:
    replies(fake_slurm)
    if trouble == "missing":
        (fake_slurm.bin / "sacctmgr").unlink()
    else:
        fake_slurm.says(
            "sacctmgr", err="sacctmgr: error: Problem talking to the database: Connection refused\n", code=1
        )
    assert (discover().accounts, discover().qos) == ((), None)


def test_a_cluster_that_does_not_answer(fake_slurm: Any) -> None:
    with refused("missing_slurm", "PATH"):
        discover()
    replies(fake_slurm)
    fake_slurm.says("sinfo")
    with refused("no_partition", kind=SchedulerError):
        discover()
    err = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n"
    fake_slurm.says("scontrol", err=err, code=1)
    with refused("unreachable_scheduler", "slurmctld", kind=SchedulerError):
        discover()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-00:00:00", 86400),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("12:00:00", 43200),
        ("30:00", 1800),
        ("5", 300),
        ("infinite", None),
        ("UNLIMITED", None),
        ("n/a", None),
        ("", None),
    ],
)
def test_times(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=8).filter(
    lambda name: not set(name) & set("|,*") and "${" not in name
)
fields = st.text(st.characters(codec="utf-8", exclude_characters="|"), max_size=9).map(
    lambda text: "".join(text.splitlines())
)
lines = st.tuples(names, *[fields] * 7).map("|".join)


@given(st.lists(lines, min_size=1, max_size=4).map("\n".join), fields)
def test_whatever_sinfo_says_the_profile_can_be_loaded(text: str, cluster: str) -> None:
    found = DiscoveredCluster(cluster, cluster, partitions_in(text), False)
    written = profile_text(found, default_partition(found), "mine")
    assert set(spec_of(written).partitions) == {partition.name for partition in found.partitions}


gpus = st.lists(st.tuples(st.sampled_from(["h200", "a100", "1g.10gb"]), st.integers(1, 16)), min_size=1, max_size=3)


@given(gpus, st.integers(1, 200))
def test_gpus_of_all_types_count(types: list[tuple[str, int]], nodes: int) -> None:
    gres = ",".join(f"gpu:{kind}:{count}(S:0-{count})" for kind, count in types)
    [partition] = partitions_in(f"p|up|{nodes}|64|1000|infinite|1-infinite|craynetwork:4,{gres}\n")
    assert partition.gpus_per_node == sum(count for _, count in types)
    assert set(partition.gpu_types) == {kind for kind, _ in types}
