"""A training command of Megatron-LM as a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.errors import UserError
from orchestrator.fields.metadata import OURS, REQUIRED
from orchestrator.migration.defaults import default_of
from orchestrator.migration.flag_groups import FLAG_GROUPS
from orchestrator.migration.flag_groups.training import name_of_file
from orchestrator.migration.flags import CommandLine, Flag
from orchestrator.migration.flags import parse as parse_flags
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.migration.megatron_flags.ignored_flags import unread_notes
from orchestrator.migration.megatron_flags.programs import (
    GPT,
    PROGRAMS,
    TrainingCommand,
    family_of_flag,
    training_command,
    trains,
)
from orchestrator.migration.megatron_flags.table import IMPLIED, OLD_NAMES, ROWS, Row
from orchestrator.migration.megatron_flags.unsupported_flags import (
    HARMLESS_VALUES,
    HINTS,
    OPENS,
    WORDS,
    unsupported_flag,
    why_idle,
)
from orchestrator.migration.report import FlagOutcome, Migration
from orchestrator.migration.scripts.environment import OWNED, read_environment
from orchestrator.migration.scripts.launchers import (
    launcher_options,
    note_processes,
    read_launch,
    sbatch_options,
    slurm_variables,
)
from orchestrator.migration.scripts.options import Options
from orchestrator.migration.scripts.pbs import pbs_options, pbs_variables
from orchestrator.migration.shell.command_substitution import follow
from orchestrator.migration.shell.started_program import Script, StartedCommand
from orchestrator.migration.shell.syntax import ShellSyntaxError
from orchestrator.migration.shell.values import Unknown, Value, known, shown, split, unknowns
from orchestrator.migration.shell.variables import Array, Variables
from orchestrator.spec.messages.document import JOB_SPEC
from orchestrator.spec.messages.suggestions import closest, suggest
from orchestrator.spec.schema.shape import leaf_paths

_ROWS = {row.flag: row for row in ROWS}
_FLAGS = {path: [row.flag for row in ROWS if row.path == path] for path in {row.path for row in ROWS}}
_WORDS: dict[str, int | None] = {**WORDS, **{row.flag: row.kind.values for row in ROWS}}
_WORDS |= {name: count for group in FLAG_GROUPS for name, count in group.flags.items()}
_WORDS |= {old: _WORDS[new] for old, new in OLD_NAMES.items()}
_WORDS |= {name: 0 for name in IMPLIED if name not in _WORDS}
_SHOWN_COMMANDS = 5
_UNKNOWN = (
    "take it out where the training does not depend on it, or write what it stands for (--set KEY=VALUE; what a "
    "training step of your own takes is runtime.train_step_arguments)"
)
_SAYS_HOW_MANY = re.compile(r"(SLURM_|SLURM_JOB_)?(N|NUM_)NODES|(SLURM_)?GPUS_(PER|ON)_NODE|WORLD_SIZE")
"""Variables of the launcher's whose defaults are sizes of the job."""


def migrate_script(
    text: str,
    source: str,
    *,
    arguments: Sequence[str] = (),
    given: dict[str, str] | None = None,
    which: int | None = None,
    without: Sequence[str] = (),
    read_file: Callable[[str], str | None] = lambda path: None,
) -> Migration:
    """The job that a shell script (or a file of flags) trains.

    `arguments` are the script's own, `given` are variables by name (a number: an argument), `which` of several training
    commands is meant, counted from 1, `without` are flags to leave out on purpose. Nothing is run. Raises UserError
    where there is nothing to migrate.
    """
    schedulers = [pbs_options(text), sbatch_options(text)]
    variables = _variables(arguments, given or {}, pbs_variables(schedulers[0]) | slurm_variables(schedulers[1]))
    try:
        script = follow(text, variables, lambda words: _wanted(words) is not None, read_file)
    except ShellSyntaxError as error:
        raise UserError(f"{source}:{error.line}: {error.message}", code="shell_syntax") from error
    started = _chosen(script, source, which)
    command = _wanted(started.words)
    assert command is not None, "only such commands are kept"
    where = f"{source}:{started.line}" if command.program else source
    started_by = [*schedulers, *launcher_options(command.launcher)]
    migration = migrate_command(command, where, started_by, without)
    migration.values.setdefault("name", name_of_file(source) or "migrated")
    environment = started.environment | {name: value for each in started_by for name, value in each.exports}
    read_environment(migration, sorted(environment.items()), started.read)
    migration.notes[:0] = [*script.notes, *_taken(variables)]
    return migration


def migrate_words(words: Sequence[str], source: str, *, without: Sequence[str] = ()) -> Migration:
    """The job of a training command, or of flags alone, whose words are known."""
    values: list[Value] = [(word,) for word in words]
    command = _wanted(values)
    if command is None:
        raise UserError(
            f"{source}: these are not flags of a training: {' '.join(words)[:200]}", code="not_training_flags"
        )
    migration = migrate_command(command, source, launcher_options(command.launcher), without)
    migration.values.setdefault("name", "migrated")
    return migration


def is_training(words: Sequence[str]) -> bool:
    """Whether words are a training command, or flags alone."""
    return _wanted([(word,) for word in words]) is not None


def _wanted(words: Sequence[Value]) -> TrainingCommand | None:
    """A training command, or flags without a command before them."""
    if words and isinstance(words[0][0] if words[0] else None, str) and str(words[0][0]).startswith("--"):
        return TrainingCommand((), "", tuple(words))
    return training_command(words)


def _variables(arguments: Sequence[str], given: dict[str, str], scheduler: dict[str, Value]) -> Variables:
    positional: list[Value] = [(word,) for word in arguments]
    for name in sorted((name for name in given if name.isdigit() and name != "0"), key=int):
        number = int(name)
        if number > 1000:
            raise UserError(f"--set-var {name}: no script has that many arguments", code="argument_number_too_large")
        while len(positional) < number:
            missing = str(len(positional) + 1)
            positional.append((Unknown(f"${missing}", f"argument {missing} of the script", missing),))
        positional[number - 1] = (given[name],)
    named: dict[str, Value] = {name: (value,) for name, value in given.items() if not name.isdigit()}
    values: dict[str, Array] = {name: (value,) for name, value in scheduler.items()}
    return Variables(given=named, values=values, arguments=positional)


def _chosen(script: Script, source: str, which: int | None) -> StartedCommand:
    run = [command for command in script.commands if not _is_printed(command)]
    found = run or script.commands or _flags_in_variables(script)
    if found and all(shown(command.words[0]).startswith("--") for command in found):
        words = tuple(word for command in found for word in command.words)
        found = [replace(found[0], words=words)]  # lines of flags without a command are one
    if not found:
        raise UserError(
            f"{source} starts no recognisable training: no command with a program such as pretrain_gpt.py and its "
            "flags, and no variable that holds flags. If it starts another script, migrate that one",
            code="no_training_found",
        )
    if which is None and len(found) > 1:
        lines = ", ".join(str(each.line) for each in found[:_SHOWN_COMMANDS])
        raise UserError(
            f"{source} starts {len(found)} trainings (lines {lines}): choose one with --command 1, 2, …",
            code="several_trainings",
        )
    if which is not None and not 1 <= which <= len(found):
        raise UserError(
            f"{source} starts {len(found)} training{'s' if len(found) > 1 else ''}: there is no {which}",
            code="training_number_too_large",
        )
    return found[(which or 1) - 1]


def _is_printed(started: StartedCommand) -> bool:
    """Whether the command is only shown (`echo $CMD`), as scripts do before they start it."""
    command = _wanted(started.words)
    return command is not None and any(known(word) in ("echo", "printf") for word in command.launcher)


def _flags_in_variables(script: Script) -> list[StartedCommand]:
    """One command of all flags that variables hold, where a file sets them and starts nothing."""
    words: list[Value] = []
    holders: list[str] = []
    variables = script.variables
    for name in variables.values:
        if name in variables.read:
            continue  # another variable holds them as well
        held = [word for element in variables.elements(name) or () for word in _split(element)]
        if held and shown(held[0]).startswith("--"):
            holders.append(name)
            words.extend(held)
    if not trains(words):
        return []
    script.notes.append(f"the file starts nothing: its flags are those of {', '.join(holders)}")
    return [StartedCommand(1, tuple(words), {}, frozenset())]


def _split(value: Value) -> list[Value]:
    return [word for word in split(value) if word]


def _taken(variables: Variables) -> list[str]:
    """What the script would take from outside, and what was taken instead."""
    notes = []
    for name, value in variables.defaults.items():
        if OWNED.fullmatch(name) and not _SAYS_HOW_MANY.fullmatch(name):
            continue  # the launcher's
        where = f"argument {name} is" if name.isdigit() else f"{name} is"
        notes.append(f"{where} taken from the script's default: {value or 'nothing'} (--set-var {name}=VALUE)")
    for name in sorted(name for name in variables.empty - variables.defaults.keys() if not OWNED.fullmatch(name)):
        notes.append(f"${name} is assumed to be empty in a condition: nothing sets it (--set-var {name}=VALUE)")
    return notes


def migrate_command(
    command: TrainingCommand, source: str, started_by: Sequence[Options], without: Sequence[str] = ()
) -> Migration:
    """The job of one training command. Raises UserError for a flag to leave out that it does not have."""
    family = command.family or GPT
    migration = Migration(source)
    line = parse_flags(command.words, _WORDS.get)
    left_out = [_left_out(line, name, source) for name in without]
    valued = [flag for name, flag in line.flags.items() if flag.words and _WORDS.get(name) == 0]
    flags, replaced = _renamed({name: flag for name, flag in line.flags.items() if flag not in valued})
    gathering = GivenFlags(flags, migration, family)
    if family.model is not None and family.model.name != default_of("model.architecture"):
        gathering.default("model.architecture", family.model.name, f"a {family.name}, by {command.family_told_by}")
    for row in ROWS:
        _read_row(gathering, row)
    for group in FLAG_GROUPS:
        group.read(gathering)
    for name in flags:
        if name not in gathering.settled:
            _read_unsupported(gathering, name)
    migration.notes += unread_notes(gathering)
    order = {flag.shown: number for number, flag in enumerate(flags.values())}
    migration.accounts.sort(key=lambda account: order.get(account.flag, len(order)))
    migration.accounts += [
        FlagOutcome("no_counterpart", flag.shown, reason="it takes no value, and Megatron-LM refuses one: leave it out")
        for flag in valued
    ]
    migration.accounts += [FlagOutcome("no_effect", flag.shown, reason="--without leaves it out") for flag in left_out]
    migration.notes += [f"{flag.shown} is left out on purpose (--without)" for flag in left_out]
    again = "it is repeated later, and the last one counts"
    migration.accounts += [FlagOutcome("no_effect", flag.shown, reason=again) for flag in line.repeated]
    migration.accounts += [FlagOutcome("no_effect", flag.shown, reason="another flag says it") for flag in replaced]
    for stray in line.strays:
        _read_stray(migration, stray)
    read_launch(migration, started_by)
    note_processes(gathering)
    if command.family is None and command.program:
        migration.notes.append(f"{command.program} is assumed to train a GPT: its name does not show the model")
    elif family.model is None:
        migration.refused = (
            f"{command.family_told_by} trains a {family.name} model, and this version has "
            f"{' and '.join(each.name for each in PROGRAMS)} only: "
            "its flags are listed, and no job is written"
        )
    return migration


def _left_out(line: CommandLine, name: str, source: str) -> Flag:
    flag = line.flags.pop(name.lstrip("-").replace("_", "-"), None)
    if flag is None:
        raise UserError(f"--without {name}: {source} has no such flag", code="missing_flag")
    return flag


def _renamed(given: dict[str, Flag]) -> tuple[dict[str, Flag], list[Flag]]:
    """(the flags under the names that they have now, those that another one says).

    A flag that stands for another goes over it; an older name of a flag does not.
    """
    stand_ins = {IMPLIED[name][0] for name in given if name in IMPLIED}
    flags: dict[str, Flag] = {}
    replaced: list[Flag] = []
    for name, flag in given.items():
        meant = []
        if name in OLD_NAMES and OLD_NAMES[name] not in given:
            meant.append(Flag(OLD_NAMES[name], flag.words, flag.shown))
        if name in IMPLIED:
            implied, word = IMPLIED[name]
            meant.append(Flag(implied, ((word,),) if word is not None else (), flag.shown))
        if name not in OLD_NAMES and name not in IMPLIED and name not in stand_ins:
            meant.append(flag)
        kept = [each for each in meant if each.name not in flags]
        if not kept:
            replaced.append(flag)
        flags.update({each.name: each for each in kept})
    return flags, replaced


def _read_row(given: GivenFlags, row: Row) -> None:
    has_effect = row.only is None or given.is_open(row.only[0]) or row.is_for(given.get(row.only[0]))
    if not given.has(row.flag):
        is_said = any(map(given.has, _FLAGS[row.path]))
        if row.default not in (OURS, REQUIRED) and not is_said and has_effect:
            given.default(row.path, row.default)
        return
    if not has_effect:
        given.no_effect(row.flag, row.purpose)
        return
    text = "" if row.kind.values == 0 else given.text(row.flag)
    if text is None:
        given.write_it(row.flag, row.path)
        return
    try:
        value = _read_value(given, row, text)
    except ValueError as error:
        if row.kind.is_choice:
            given.refuse_value(row.flag, row.path, str(error))
        else:
            given.write_it(row.flag, row.path, str(error))
        return
    given.carry(row.flag, row.path, value)


def _read_value(given: GivenFlags, row: Row, text: str) -> Any:
    if row.choices is None:
        return row.kind.read(text)
    path, legal = row.choices[0], row.choices[1][given.get(row.choices[0])]
    try:
        value = row.kind.read(text)
    except ValueError:
        value = None
    if value not in legal:
        raise ValueError(f"of its choices a {given.get(path)} has {', '.join(legal)}")
    return value


def _read_unsupported(given: GivenFlags, name: str) -> None:
    flag = given.flags[name]
    family = family_of_flag(name)
    if family is not None and name in given.family.flags:
        is_here = given.family.model is not None
        given.not_supported(name, f"{'this' if is_here else given.family.name} is not in this version")
        return
    if family is not None and flag.words != (("0",),):
        given.no_effect(name, f"it is for {family.name}")
        return
    found = unsupported_flag(name)
    if found is None:
        reason = HINTS.get(name) or f"not a known flag: {_hint(name)}"
        given.settle(name, "no_counterpart", OPENS.get(name), reason=reason)
        if name in OPENS:
            given.require(OPENS[name], f"{flag.shown} ({reason})")
        for word in flag.words[1:]:  # how many values it has is not known: a variable behind them may hold flags
            if unknowns(word) and known(word) is None:
                _read_stray(given.migration, word)
        return
    asks_for_nothing = [shown(word) for word in flag.words] in [[value] for value in HARMLESS_VALUES.get(name, ())]
    if found.effect == "none" or asks_for_nothing:
        given.no_effect(name, "this value has no effect" if asks_for_nothing else found.reason)
    elif found.effect == "aside":
        given.not_supported(name, found.reason)
    elif (idle := why_idle(name, given.get)) is not None:
        given.no_effect(name, idle)
    elif found.path is not None:
        given.refuse_value(name, found.path, found.reason)
    else:
        given.another_training(name, found.reason)


def _hint(name: str) -> str:
    near, plain = closest(name, list(_WORDS)), name.replace("-", "_")
    meant = f"did you mean --{' or --'.join(near)}?" if near else None
    if not near and (plain in JOB_SPEC.foreign_names or any(path.endswith(f".{plain}") for path in leaf_paths())):
        meant = suggest(plain, (), ())[0]
    return f"{meant} Else {_UNKNOWN}" if meant else _UNKNOWN


def _read_stray(migration: Migration, word: Value) -> None:
    missing = unknowns(word)
    if missing:
        reason = f"{missing[0].why}: it may hold flags"
        if missing[0].variable is not None:
            reason += f": --set-var {missing[0].variable}=VALUE"
        migration.accounts.append(FlagOutcome("not_known", shown(word), reason=reason))
    else:
        migration.accounts.append(FlagOutcome("no_counterpart", shown(word) or "''", reason="it belongs to no flag"))
