"""Where a script runs its training: the options of torchrun, mpirun, srun and sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from orchestrator.migration.flags import CommandLine, Flag
from orchestrator.migration.flags import parse as parse_flags
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.migration.report import FlagOutcome, Migration, Source
from orchestrator.migration.scripts.options import (
    GPUS,
    NODES,
    TIME,
    Options,
    account,
    number_of,
    put,
    put_name,
    put_size,
)
from orchestrator.migration.scripts.pbs import read_pbs
from orchestrator.migration.shell.values import Value, known, shown

_SIZES = {"nproc-per-node": GPUS, "nnodes": NODES, "num-gpus": GPUS, "num-nodes": NODES}
"""Options of torchrun and of deepspeed."""
_TOTALS = ("np", "n", "num-processes")
"""Options of mpirun and of `accelerate launch` that count all processes."""
_ON_EACH = ("npernode", "N", "ppn")
"""Options of mpirun that count the processes of each machine."""
_SLURM_SHORT = {
    **{"N": "nodes", "p": "partition", "A": "account", "q": "qos", "t": "time", "J": "job-name", "G": "gpus"},
    **{
        "o": "output",
        "e": "error",
        "n": "ntasks",
        "c": "cpus-per-task",
        "l": "label",
        "u": "unbuffered",
        "C": "constraint",
    },
    **{"w": "nodelist", "x": "exclude", "d": "dependency", "a": "array", "K": "kill-on-bad-exit", "i": "input"},
}
_SLURM_WITHOUT = frozenset(
    ("exclusive", "label", "unbuffered", "requeue", "no-requeue", "overlap", "overcommit", "wait-all-nodes")
)
_SLURM_TEXTS = {
    "partition": "launch.partition",
    "account": "launch.account",
    "qos": "launch.qos",
    "mem": "launch.memory_per_node",
}
_SLURM_NO_EFFECT = {
    **dict.fromkeys(("output", "error", "input", "open-mode", "label", "unbuffered"), "logs go to the run directory"),
    **dict.fromkeys(
        ("requeue", "no-requeue", "signal"), "a run restarts automatically: launch.on_failure, launch.stop_margin"
    ),
    **dict.fromkeys(
        (
            "exclusive",
            "ntasks",
            "kill-on-bad-exit",
            "wait",
            "export",
            "mpi",
            "chdir",
            "overlap",
            "gpu-bind",
            "cpu-bind",
        ),
        "the batch script is rendered anew",
    ),
}
_STARTERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch", "launch.py"), "torchrun"),
    **{"deepspeed": "deepspeed", "mpirun": "mpirun", "mpiexec": "mpirun", "accelerate": "accelerate"},
}
"""Programs that start the processes."""
_STARTERS_SWITCHES = ("standalone", "no-python", "allow-run-as-root", "multi-gpu", "use-env")
_IN_PROFILE = "the cluster profile says it (`orchestrator cluster init`)"
_SBATCH = re.compile(r"^#SBATCH(?=[ \t-])[ \t]*(.*?)[ \t]*(?:#.*)?$", re.MULTILINE)
_GRES = re.compile(r"gpu(?::(?!\d+$)[\w.-]+)?(?::(\d+))?", re.ASCII)
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})", re.ASCII)


def sbatch_options(script: str) -> Options:
    """The options of a batch script's #SBATCH lines.

    sbatch refuses a script with another word among them: "Invalid directive found in batch script".
    """
    words: list[Value] = []
    for line in _SBATCH.findall(script):
        try:
            words.extend((word,) for word in shlex.split(line))
        except ValueError:
            words.extend((word,) for word in line.split())
    line = _slurm_options(words)
    return Options("#SBATCH", line.flags, unread=line.strays)


def _slurm_options(words: Sequence[Value]) -> CommandLine:
    long: list[Value] = []
    for word in words:
        text = known(word)
        if text is None or not re.match(r"-[A-Za-z]", text):
            long.append(word)
            continue
        long.append((f"--{_SLURM_SHORT.get(text[1], text[1])}",))
        if text[2:]:
            long.append((text[2:].removeprefix("="),))
    return parse_flags(long, lambda name: 0 if name in _SLURM_WITHOUT else 1, up_to_a_stray=True)


def launcher_options(words: Sequence[Value]) -> list[Options]:
    """The options of the programs that stand before the training program."""
    texts = [PurePath(known(word) or "").name for word in words]
    found: list[Options] = []
    for number, text in enumerate(texts):
        if text in ("srun", "sbatch", "salloc"):
            found.append(Options(text, _slurm_options(words[number + 1 :]).flags))
        elif text in _STARTERS:
            line = parse_flags(words[number + 1 :], lambda name: 0 if name in _STARTERS_SWITCHES else 1)
            handed_on = [
                word for flag in (*line.repeated, *line.flags.values()) if flag.name == "x" for word in flag.words
            ]
            flags = {name: flag for name, flag in line.flags.items() if name != "x"}
            if alone := tuple(word for word in handed_on if _export(word) is None):
                flags["x"] = Flag("x", alone)
            exports = tuple(export for word in handed_on if (export := _export(word)) is not None)
            found.append(Options(_STARTERS[text], flags, exports))
    if not any(options.program in _STARTERS.values() for options in found):
        python = any(re.fullmatch(r"python[\d.]*", text) for text in texts)
        if python and not any(options.program == "srun" for options in found):
            found.append(Options("python", {}))
    return found


def _export(word: Value) -> tuple[str, Value] | None:
    """`NAME=VALUE`; None of a name alone, whose value the environment has."""
    first = word[0] if word and isinstance(word[0], str) else ""
    name, equals, rest = first.partition("=")
    return (name, tuple(part for part in (rest, *word[1:]) if part != "")) if equals and name.isidentifier() else None


def slurm_variables(options: Options) -> dict[str, Value]:
    """What SLURM sets for a script with these #SBATCH lines."""
    nodes, gpus = number_of(options, "nodes"), _gpus(options)
    tasks = number_of(options, "ntasks-per-node")
    values = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), gpus),
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": number_of(options, "ntasks") or (nodes * tasks if nodes and tasks else None),
        "SLURM_CPUS_PER_TASK": number_of(options, "cpus-per-task"),
    }
    given: dict[str, Value] = {name: (str(value),) for name, value in values.items() if value is not None}
    if "job-name" in options.flags:
        given["SLURM_JOB_NAME"] = options.flags["job-name"].words[0]
    return given


def _gpus(options: Options) -> int | None:
    for name in ("gpus-per-node", "gres"):
        flag = options.flags.get(name)
        text = known(flag.words[0]) if flag is not None and flag.words else None
        if text is None:
            continue
        for part in text.split(","):
            match = _GRES.fullmatch(part) if name == "gres" else re.fullmatch(r"(?:[\w.-]+:)?(\d+)", part, re.ASCII)
            if match:
                return int(match.group(1) or 1)
    return None


def read_launch(migration: Migration, started_by: Sequence[Options]) -> None:
    """Nodes, processes per node, and what is asked of SLURM; a program nearer to the training goes over one further."""
    sizes: dict[str, int] = {}
    readers = {"python": _read_python, "mpirun": _read_total, "accelerate": _read_total}
    readers |= {"torchrun": _read_starter, "deepspeed": _read_starter, "#PBS": read_pbs}
    for options in started_by:
        reader = readers.get(options.program, _read_slurm)
        reader(migration, options, sizes)
    for path, size in sizes.items():
        is_missing = path in migration.missing
        if not is_missing and (path == GPUS or size != 1):
            migration.values[path] = size
            migration.sources.setdefault(path, Source("the script's launcher"))


def _read_starter(migration: Migration, options: Options, sizes: dict[str, int]) -> None:
    for name, flag in options.flags.items():
        if name in _SIZES:
            text = known(flag.words[0]) if flag.words else None
            is_number = text is not None and text.isascii() and text.isdigit() and int(text) > 0
            put_size(migration, options, flag, _SIZES[name], sizes, int(text) if text and is_number else None)
        else:
            account(migration, options, flag, "no_effect", None, "the launch script is rendered anew")
    if GPUS not in (_SIZES.get(name) for name in options.flags) and options.program == "torchrun":
        migration.notes.append("torchrun starts one process per machine if --nproc-per-node is not given")
        sizes[GPUS] = 1
        migration.sources[GPUS] = Source("torchrun without --nproc-per-node")


def _read_total(migration: Migration, options: Options, sizes: dict[str, int]) -> None:
    """All processes, and on how many machines where that is said."""
    each = next((number_of(options, name) for name in _ON_EACH if name in options.flags), None)
    nodes = number_of(options, "num-machines") or sizes.get(NODES, 1)
    for name, flag in options.flags.items():
        total = number_of(options, name)
        if name in _ON_EACH:
            put_size(migration, options, flag, GPUS, sizes, total)
        elif name in _TOTALS:
            path, count = (GPUS, nodes) if each is None else (NODES, each)
            put_size(migration, options, flag, path, sizes, total // count if total and total % count == 0 else None)
        elif name == "num-machines":
            put_size(migration, options, flag, NODES, sizes, total)
        else:
            account(migration, options, flag, "no_effect", None, "the launch script is rendered anew")


def _read_python(migration: Migration, options: Options, sizes: dict[str, int]) -> None:
    if not sizes:
        migration.notes.append("the script starts one process, without torchrun")
        sizes[GPUS] = 1
        migration.sources[GPUS] = Source("started without torchrun")


def _read_slurm(migration: Migration, options: Options, sizes: dict[str, int]) -> None:
    for name, flag in options.flags.items():
        text = known(flag.words[0]) if flag.words else None
        if name == "nodes":
            put_size(migration, options, flag, NODES, sizes, number_of(options, name))
        elif name in ("gpus-per-node", "gres"):
            put_size(migration, options, flag, GPUS, sizes, _gpus(options))
        elif name == "ntasks-per-node":
            tasks = number_of(options, name)
            if tasks is not None and tasks > 1 and GPUS not in sizes:
                put_size(migration, options, flag, GPUS, sizes, tasks)
            else:
                account(migration, options, flag, "no_effect", None, "processes are started by torchrun, one per GPU")
        elif name == "time" and text is not None and (seconds := _seconds(text)):
            put(migration, options, flag, TIME, seconds)
        elif name in _SLURM_TEXTS and text is not None:
            put(migration, options, flag, _SLURM_TEXTS[name], text)
        elif name == "job-name":
            put_name(migration, options, flag)
        elif name in _SLURM_NO_EFFECT:
            account(migration, options, flag, "no_effect", None, _SLURM_NO_EFFECT[name])
        else:
            account(migration, options, flag, "no_counterpart", None, _IN_PROFILE)
    if options.unread:
        written = f"{options.program} {' '.join(map(shown, options.unread))}"
        reason = (
            f"sbatch refuses the script at {shown(options.unread[0])}, which is not an option, and ignores "
            "everything after it: remove it, and migrate again"
        )
        migration.accounts.append(FlagOutcome("no_counterpart", written, None, None, reason))


def _seconds(text: str) -> int | None:
    """Seconds of SLURM's minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, …"""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds or None


def note_processes(gathering: GivenFlags) -> None:
    """Say so where nothing tells how many processes there are."""
    migration = gathering.migration
    if NODES not in migration.values and GPUS not in migration.values:
        migration.notes.append(
            "the number of GPUs is not given: the job has as many as one replica needs (DP 1); write "
            "launch.nodes and launch.gpus_per_node for more"
        )
