"""The options of a program that starts a training, and how they become fields of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.migration.defaults import default_of
from orchestrator.migration.flag_groups.training import as_name
from orchestrator.migration.flags import Flag
from orchestrator.migration.report import WRITE_IT, FlagOutcome, Migration, Outcome, Source
from orchestrator.migration.shell.values import Value, known

NODES, GPUS, TIME = "launch.nodes", "launch.gpus_per_node", "launch.time"


@dataclass(frozen=True)
class Options:
    """Options of one program that starts the training."""

    program: str
    flags: dict[str, Flag]
    exports: tuple[tuple[str, Value], ...] = ()
    """Variables that it hands to the training with a value."""
    unread: tuple[Value, ...] = ()
    """Words from the first that is no option on."""


def number_of(options: Options, name: str) -> int | None:
    """The whole number of an option; None where it is not given, or something else."""
    flag = options.flags.get(name)
    text = known(flag.words[0]) if flag is not None and flag.words else None
    return int(text) if text is not None and text.isascii() and text.isdigit() and 0 < len(text) < 9 else None


def account(
    migration: Migration,
    options: Options,
    flag: Flag,
    outcome: Outcome,
    path: str | None = None,
    reason: str | None = None,
    value: Any = None,
) -> None:
    """Account for an option."""
    migration.accounts.append(FlagOutcome(outcome, f"{options.program} {flag.shown}", path, value, reason))


def put_size(
    migration: Migration,
    options: Options,
    flag: Flag,
    path: str,
    sizes: dict[str, int],
    size: int | None,
    otherwise: str = "it is no number",
) -> None:
    """A number of machines or GPUs; None where it is not known, or `otherwise`."""
    if size is None:
        if path in sizes:
            account(migration, options, flag, "no_effect", path, "another option says it")
            return
        unknown = flag.unknown
        why = unknown.why if unknown is not None else otherwise
        if unknown is not None and unknown.variable:
            why += f": --set-var {unknown.variable}=VALUE"
        account(migration, options, flag, "not_known", path, why)
        migration.missing[path] = f"{options.program} {flag.shown} ({why})"
        migration.values[path] = WRITE_IT
        migration.sources[path] = Source(f"write it: {migration.missing[path]}")
        return
    account(migration, options, flag, "default" if size == default_of(path) else "carried", path, value=size)
    sizes[path] = size
    migration.missing.pop(path, None)
    migration.sources[path] = Source(f"{options.program} {flag.shown}")


def put(migration: Migration, options: Options, flag: Flag, path: str, value: Any) -> None:
    """A value of a field."""
    account(migration, options, flag, "carried", path, value=value)
    migration.values[path] = value
    migration.sources[path] = Source(f"{options.program} {flag.shown}")


def put_name(migration: Migration, options: Options, flag: Flag) -> None:
    """The name that a scheduler is given; that of the flags goes before."""
    text = known(flag.words[0]) if flag.words else None
    name = as_name(text) if text is not None else ""
    if "name" in migration.values:
        account(migration, options, flag, "no_effect", "name", "the flags name the job")
    elif name:
        put(migration, options, flag, "name", name)
    else:
        account(migration, options, flag, "no_effect", "name", "it is only a name")
