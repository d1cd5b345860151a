"""What SLURM refuses to queue, with its own words, what was asked for, and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.executors.slurm.commands import Answer, words_of

_DIRECTIVE = re.compile(r"#SBATCH\s+(--[a-z-]+(?:[= ].*)?)")
_NODES = ("nodes", "ntasks-per-node", "gres", "gpus-per-node", "cpus-per-task", "mem", "constraint", "exclude")

# What sbatch says (slurm_errno.c, the same words since 20.02), the options that it may be about, and the way out.
_REFUSALS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        r"partition name|partition not available|use this partition",
        ("partition",),
        "`sinfo -s` lists the partitions; write launch.partition, or `partition` in the profile",
    ),
    (
        r"invalid account|account/partition",
        ("account", "partition"),
        "`sacctmgr show assoc user=$USER` lists your accounts; write launch.account, or `account` in the profile",
    ),
    (
        r"invalid qos",
        ("qos",),
        "`sacctmgr show assoc user=$USER format=account,qos` lists yours; write launch.qos, or `qos` in the profile",
    ),
    (
        r"policy|limit\S*\)$|Assoc\w+Limit|QOS\w+",
        ("qos", "account", "partition", "nodes", "time"),
        "Wait until other jobs have ended, request less (launch.nodes, launch.time), or use another launch.qos",
    ),
    (
        r"time limit",
        ("time", "partition"),
        "`sinfo -o '%P %l'` shows the longest; write a shorter launch.time: a run that is not done continues "
        "automatically",
    ),
    (
        r"memory",
        ("mem", "partition"),
        "`sinfo -o '%P %m'` shows what nodes have, in MB; write launch.memory_per_node",
    ),
    (
        r"generic resource|gres",
        ("gres", "gpus-per-node", "partition"),
        "`sinfo -o '%P %G'` shows what nodes have; write launch.gpus_per_node, or gpu_type in the profile",
    ),
    (
        r"node count|node configuration|more processors|cpu count|feature",
        ("partition", *_NODES),
        "`sinfo -o '%P %D %c %m %G %f'` shows what there is; write launch.nodes and launch.gpus_per_node that fit",
    ),
    (r"node name", ("exclude", "nodelist"), "`sinfo -N` lists the nodes; fix `exclude` in the profile"),
    (r"dependency", ("dependency",), "The job that this one waits for is no longer known"),
    (r"unrecognized option|invalid option|invalid .*specification", (), "Fix `options` in the profile"),
)


def refusal(answer: Answer, script: Path, arguments: Sequence[str]) -> UserError:
    """The error for an sbatch that reached the scheduler and was refused."""
    words = words_of(answer).replace("Batch job submission failed: ", "")
    for pattern, options, way_out in _REFUSALS:
        if re.search(pattern, words, re.IGNORECASE):
            asked = " ".join(_asked(options, script, arguments))
            return UserError(
                f"SLURM refuses the job: {words}{f' ({asked})' if asked else ''}. {way_out}", code="refused_submission"
            )
    return UserError(f"SLURM refuses the job: {words}", code="refused_submission")


def _asked(options: tuple[str, ...], script: Path, arguments: Sequence[str]) -> Iterator[str]:
    """What was asked for, as it stands on the command line or in the script; the command line goes over the script."""
    given: dict[str, str] = {}
    lines = script.read_text(errors="replace").splitlines() if script.is_file() else []
    for text in [*(match.group(1) for line in lines if (match := _DIRECTIVE.match(line))), *arguments]:
        name = re.split("[= ]", text.removeprefix("--"), maxsplit=1)[0]
        given[name] = text
    return (given[option] for option in options if option in given)
