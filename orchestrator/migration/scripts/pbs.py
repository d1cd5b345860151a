"""The `#PBS` lines of a script for PBS or Torque: machines, GPUs and time as a job has them, the rest listed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.migration.flags import Flag
from orchestrator.migration.report import Migration
from orchestrator.migration.scripts.options import GPUS, NODES, TIME, Options, account, put, put_name, put_size
from orchestrator.migration.shell.values import Value, known

_LINE = re.compile(r"^#PBS[ \t]+(.*?)[ \t]*(?:#.*)?$", re.MULTILINE)
_WITHOUT = frozenset("VfhIXxzn")
"""Letters of options without a value."""
_WALLTIME = re.compile(r"\d+(?::\d+){0,3}", re.ASCII)
_UNITS = (1, 60, 3600, 86400)
"""Seconds of each part of a time, from its end."""
_GPUS = {"select": "ngpus", "nodes": "gpus"}
"""What GPUs are called in chunks of PBS, and in those of Torque."""
_NO_EFFECT = {
    **dict.fromkeys("oejk", "logs go to the run directory"),
    **dict.fromkeys((*"VSdw", "place"), "the batch script is rendered anew"),
    **dict.fromkeys(
        ("ncpus", "mpiprocs", "ompthreads", "ppn", "procs"), "processes are started by torchrun, one per GPU"
    ),
    "r": "a run restarts automatically: launch.on_failure, launch.stop_margin",
}
_WRITE_IT = {
    **dict.fromkeys(("mem", "pmem", "vmem", "pvmem"), "write launch.memory_per_node"),
    **dict.fromkeys(("ngpus", "gpus"), "of all machines: write launch.nodes and launch.gpus_per_node"),
    "q": "a queue of PBS: write the partition of SLURM into launch.partition",
    **dict.fromkeys("AP", "an account of PBS: write SLURM's into launch.account"),
    "v": "write the variables into launch.env",
    **dict.fromkeys("Jt", "many variants of one job are a sweep: orchestrator sweep"),
}
_IN_PROFILE = "SLURM's counterpart belongs in the cluster profile (`orchestrator cluster init`)"


@dataclass(frozen=True)
class _Chunk:
    """Machines that are alike."""

    count: int
    resources: dict[str, str]


def pbs_options(script: str) -> Options:
    """The options of a script's #PBS lines as they are written, named by their letter, or by the resource."""
    flags = [
        flag
        for line in _LINE.findall(script)
        for letter, text in _written(line)
        for flag in (_resources(text) if letter == "l" else [_option(letter, text)])
    ]
    return Options("#PBS", {flag.shown: flag for flag in flags})


def _option(letter: str, text: str) -> Flag:
    if not letter:  # a word that is no option
        return Flag("", (), text)
    return Flag(letter, ((text,),) if text else (), f"-{letter} {text}".rstrip())


def _resources(text: str) -> list[Flag]:
    pairs = [(resource, *resource.partition("=")[::2]) for resource in text.split(",")]
    return [Flag(name, ((value,),), f"-l {resource}") for resource, name, value in pairs]


def _written(line: str) -> Iterator[tuple[str, str]]:
    """(letter, value) of each option of a line; a word that is none has no letter."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    while words:
        word = words.pop(0)
        if not re.match(r"-[A-Za-z]", word):
            yield "", word
        elif word[2:] or word[1] in _WITHOUT or not words:
            yield word[1], word[2:]
        else:
            yield word[1], words.pop(0)


def pbs_variables(options: Options) -> dict[str, Value]:
    """What PBS and Torque set for a script with these lines."""
    given: dict[str, Value] = {}
    for flag in options.flags.values():
        if flag.name in _GPUS:
            given["PBS_NUM_NODES"] = (str(sum(chunk.count for chunk in _chunks(flag))),)
        elif flag.name == "N" and flag.words:
            given["PBS_JOBNAME"] = flag.words[0]
    return given


def read_pbs(migration: Migration, options: Options, sizes: dict[str, int]) -> None:
    """Machines, GPUs and time; what else is asked of PBS is listed."""
    for flag in options.flags.values():
        name = flag.name
        if name in _GPUS:
            _read_chunks(migration, options, flag, sizes)
        elif name == "walltime" and (seconds := _seconds(known(flag.words[0]) or "")):
            put(migration, options, flag, TIME, seconds)
        elif name == "walltime":
            account(migration, options, flag, "not_known", TIME, "it is not a time: write launch.time")
        elif name == "N":
            put_name(migration, options, flag)
        else:
            _list(migration, options, flag)


def _chunks(flag: Flag) -> list[_Chunk]:
    """`2:ncpus=8:ngpus=4+ncpus=8`: without a number, or with a machine's name in its place, one."""
    chunks = []
    for text in (known(flag.words[0]) or "").split("+"):
        first, *parts = text.split(":")
        size = int(first) if first.isascii() and first.isdigit() and len(first) < 9 else 1
        pairs = (part.partition("=") for part in ([first, *parts] if "=" in first else parts))
        chunks.append(_Chunk(size, {name: value for name, _, value in pairs}))
    return chunks


def _read_chunks(migration: Migration, options: Options, flag: Flag, sizes: dict[str, int]) -> None:
    chunks, gpus = _chunks(flag), _GPUS[flag.name]
    put_size(migration, options, flag, NODES, sizes, sum(chunk.count for chunk in chunks) or None)
    if flag.name == "select" and sizes.get(NODES, 1) > 1:
        migration.notes.append(f"each chunk of {options.program} {flag.shown} is assumed to be a separate machine")
    on_each = {chunk.resources.get(gpus) for chunk in chunks}
    if on_each != {None}:
        number = next(iter(on_each)) if len(on_each) == 1 else None
        is_number = number is not None and number.isascii() and number.isdigit() and int(number) > 0
        put_size(
            migration, options, flag, GPUS, sizes, int(number) if number and is_number else None, "machines differ"
        )
    for chunk in chunks:
        for name, value in chunk.resources.items():
            if name != gpus:
                written = f"{flag.shown}: {name}={value}" if value else f"{flag.shown}: {name}"
                _list(migration, options, Flag(name, (), written))


def _list(migration: Migration, options: Options, flag: Flag) -> None:
    """What is no field of a job."""
    if flag.name in _NO_EFFECT:
        account(migration, options, flag, "no_effect", None, _NO_EFFECT[flag.name])
    else:
        account(migration, options, flag, "no_counterpart", None, _WRITE_IT.get(flag.name, _IN_PROFILE))


def _seconds(text: str) -> int | None:
    """Seconds of `[[hours:]minutes:]seconds`, or of `days:hours:minutes:seconds`."""
    if not _WALLTIME.fullmatch(text):
        return None
    return sum(int(part) * unit for part, unit in zip(reversed(text.split(":")), _UNITS, strict=False)) or None
