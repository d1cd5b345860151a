"""`orchestrator migrate`: another tool's job as a job spec."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.common import AsJson, print_json
from orchestrator.cli.jobs.job_files.editor_schema import with_schema_line, write_schema
from orchestrator.cli.outputs import PRINTED, JobOutput, check_printed, told_aside, write_output
from orchestrator.errors import Problem, SpecError, UserError, render_problem
from orchestrator.migration.from_accelerate import is_accelerate, migrate_accelerate
from orchestrator.migration.from_megatron import is_training, migrate_script, migrate_words
from orchestrator.migration.overrides import override
from orchestrator.migration.report import HEADINGS, FlagOutcome, Migration
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text
from orchestrator.spec.presets import preset_names
from orchestrator.spec.yaml.reader import read_text

_THE_LINE = "the command line"


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE [ARGUMENT...] | -- FLAG...",
        help="A shell script and its arguments, a file of flags, or Accelerate's YAML; or flags after --.",
        show_default=False,
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--set-var",
        metavar="NAME=VALUE",
        help="Set a variable of the script, or an argument by its number; may be repeated.",
    ),
]
Which = Annotated[
    int | None, typer.Option("--command", metavar="N", help="Which training to take, if the script starts several.")
]
Preset = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="Model preset, for a file without a model.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a value of the job spec; may be repeated.")
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="FLAG",
        help="Leave out this flag on purpose, although the job then trains something else; may be repeated.",
    ),
]


def command(
    sources: Sources,
    output: JobOutput = Path("job.yaml"),
    variables: Variables = None,
    which: Which = None,
    preset: Preset = None,
    overrides: Overrides = None,
    without: Without = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a job spec from a Megatron-LM script, its flags, or Accelerate's YAML. The script is read, not run. Every
    flag is accounted for: carried over, equal to the default, without effect here, or listed as not supported. The exit
    code is 2 if something still has to be filled in, or if the job would train something else.

    \b
    Example:
      orchestrator migrate pretrain_gpt.sh -o job.yaml
      orchestrator migrate train.sh /checkpoints /logs gpt2-vocab.json gpt2-merges.txt data/mine --set-var TP=4
      orchestrator migrate megatron_gpt_config.yaml --preset gpt2-large --set data.blend=data/mine
      orchestrator migrate -- --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024
    """
    check_printed(output, as_json)
    migration = _migrate(sources, _pairs(variables or []), which, preset, without or [])
    _check_output(output, sources, force)
    for each in overrides or []:
        override(migration, each)
    if migration.refused is not None:
        with told_aside(output):
            _show(migration, None, [], as_json)
        raise typer.Exit(2)
    text = with_schema_line(job_text(migration), output)
    job, problems = _checked(text, output)
    write_output(output, text)
    schema = write_schema(output)
    with told_aside(output):
        _show(migration, output, problems, as_json, job)
        if schema is not None and not as_json:
            typer.echo(f"wrote {schema}, with which editors check {output}")
    if problems or not migration.is_complete:
        raise typer.Exit(2)


def _check_output(output: Path, sources: list[str], force: bool) -> None:
    if output == PRINTED:
        return
    if output.is_dir():
        raise UserError(
            f"{output} is a folder; -o needs the file to write, such as {output / 'job.yaml'}", code="output_is_folder"
        )
    if not output.exists():
        return
    if not is_training(sources) and output.samefile(sources[0]):
        raise UserError(f"{output} is the file to migrate: choose another output file with -o", code="output_is_input")
    if not force:
        raise UserError(
            f"{output} already exists: choose another file with -o, or overwrite it with --force", code="output_exists"
        )


def _migrate(
    sources: list[str], given: dict[str, str], which: int | None, preset: str | None, without: list[str]
) -> Migration:
    for_scripts = "--set-var and --command need a script: nothing else has variables" if given or which else None
    if is_training(sources):
        if for_scripts:
            raise UserError(for_scripts, code="option_not_for_file")
        return migrate_words(sources, _THE_LINE, without=without)
    first, *arguments = sources
    if Path(first).is_dir():
        raise UserError(f"{first} is a folder; name the file in it that starts the training", code="script_is_folder")
    text = read_text(Path(first), "script")
    if isinstance(text, Problem):
        raise UserError(f"{first}: {text.message}", code="unreadable_file")
    if not (first.endswith((".yaml", ".yml")) or is_accelerate(text)):
        if preset is not None:
            raise UserError(
                "--preset is for a file without a model, but a script has one: use --set model.preset=NAME",
                code="option_not_for_file",
            )
        read_file = partial(_sourced, Path(first).parent)
        return migrate_script(
            text, first, arguments=arguments, given=given, which=which, without=without, read_file=read_file
        )
    if without:
        raise UserError("--without is for flags, and this file has none", code="option_not_for_file")
    if for_scripts or arguments:
        raise UserError(
            for_scripts or f"{first} takes no arguments, and {arguments[0]!r} is one", code="unexpected_arguments"
        )
    if preset is not None and preset not in preset_names():
        raise UserError(f"there is no preset {preset!r}; presets: {', '.join(preset_names())}", code="unknown_preset")
    return migrate_accelerate(text, first, preset)


def _sourced(folder: Path, path: str) -> str | None:
    """The text of a file that a script sources, from its own folder or from here."""
    for place in (folder / path, Path(path)):
        if place.is_file():
            text = read_text(place, "script")
            return text if isinstance(text, str) else None
    return None


def _pairs(words: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not (name.isidentifier() or name.isdigit()):
            raise UserError(
                f"--set-var {word} is not NAME=VALUE: write --set-var TP=4, or --set-var 1=/checkpoints",
                code="malformed_assignment",
            )
        pairs[name] = value
    return pairs


def _checked(text: str, output: Path) -> tuple[dict[str, Any] | None, list[Problem]]:
    try:
        return load_text(text, "the job" if output == PRINTED else str(output)).job.model_dump(mode="json"), []
    except SpecError as error:
        return None, error.problems


def _show(
    migration: Migration, output: Path | None, problems: list[Problem], as_json: bool, job: dict[str, Any] | None = None
) -> None:
    if as_json:
        print_json(
            {
                "path": str(output) if output is not None else None,
                "source": migration.source,
                "valid": job is not None and migration.is_complete,
                "job": job,
                "flags": [asdict(account) for account in migration.accounts],
                "defaults": {
                    path: migration.values[path]
                    for path, source in migration.sources.items()
                    if source.is_default and path in migration.values
                },
                "missing": migration.missing,
                "notes": migration.notes,
                "refused": migration.refused,
                "problems": [
                    {"message": each.message, "path": each.paths[0] if each.paths else None, "hint": each.hint}
                    for each in problems
                ],
            }
        )
        return
    for line in _lines(migration):
        typer.echo(line)
    for path, why in migration.missing.items():
        typer.echo(f"write {path}: {why}", err=True)
    for problem in problems:
        typer.echo(render_problem(problem), err=True)
    if migration.refused is not None:
        typer.echo(f"error: {migration.refused}", err=True)
        return
    if others := [account.flag for account in migration.of("changes_training")]:
        leave_out = " ".join(f"--without {flag.split()[0].lstrip('-')}" for flag in others)
        typer.echo(
            f"error: this version does not support {', '.join(others)}, and without it the job trains something "
            f"else. To accept that, add {leave_out}",
            err=True,
        )
    if problems or not migration.is_complete:
        said, where = ("this", "in it") if output == PRINTED else (f"wrote {output}, which", "in the file")
        typer.echo(f"{said} is not a complete job yet: what is missing is listed above and {where}", err=True)
    elif output != PRINTED:
        typer.echo(f"wrote {output}. Next: orchestrator validate {output}, then orchestrator plan {output}")


def _lines(migration: Migration) -> Iterable[str]:
    yield f"{migration.source}: {len(migration.accounts)} flags and options"
    for outcome, heading in HEADINGS.items():
        accounts = migration.of(outcome)
        if accounts:
            yield ""
            is_kept = outcome == "carried" and migration.refused is None
            yield f"{heading if is_kept or outcome != 'carried' else 'has a field'} ({len(accounts)})"
            yield from (f"  {line}" for line in map(_account_line, accounts))
    defaults = [path for path, source in migration.sources.items() if source.is_default and path in migration.values]
    if defaults:
        yield ""
        yield f"written because the defaults differ ({len(defaults)})"
        yield from (f"  {path}: {migration.values[path]}" for path in defaults)
    if migration.notes:
        yield ""
        yield "assumed"
        yield from (f"  {note}" for note in migration.notes)
    yield ""


def _account_line(account: FlagOutcome) -> str:
    meaning = (
        [] if account.path is None else [account.path if account.value is None else f"{account.path}: {account.value}"]
    )
    meaning += [account.reason] if account.reason else []
    return f"{account.flag:<40} {', '.join(meaning)}".rstrip()
