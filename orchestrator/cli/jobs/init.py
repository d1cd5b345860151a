"""`orchestrator init`: a commented job spec, from questions or from a preset."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.common import AsJson, print_json
from orchestrator.cli.jobs.job_files.editor_schema import with_schema_line, write_schema
from orchestrator.cli.jobs.job_files.job_text import job_text
from orchestrator.cli.jobs.job_files.questionnaire import answers_in, ask, spec_values, without_replaced
from orchestrator.cli.outputs import PRINTED, JobOutput, check_printed, write_output
from orchestrator.errors import Location, Problem, SpecError, UserError
from orchestrator.spec.documents.field_names import overridden
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

_DEFAULTS = "the defaults"


def command(
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="Model preset; `orchestrator schema --presets`.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take every default.")] = False,
    output: JobOutput = Path("job.yaml"),
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a value of the spec, with --yes or --preset; may be repeated."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented job spec. On a terminal, ask a few questions and check each answer.

    \b
    Example:
      orchestrator init
      orchestrator init --preset gpt2-large -o gpt2.yaml
      orchestrator init --yes --set parallelism.tensor_model_parallel_size=2 --set data.blend=data/mine
    """
    check_printed(output, as_json)
    _refuse_overwriting(output, force)
    given: dict[str, Any] = {} if preset is None else {"model.preset": preset}
    if yes or preset is not None:
        words = overrides or []
        values = _overridden(without_replaced(spec_values({**answers_in(words), **given}), words), words)
    else:
        if overrides or not sys.stdin.isatty():
            raise UserError(
                "there is no terminal for questions: add --yes to take the defaults, or --preset NAME"
                if not overrides
                else "--set goes with --yes or --preset, which ask nothing",
                code="no_terminal",
            )
        if output == PRINTED:
            raise UserError(
                "questions would be mixed with the output of -o - : add --yes or --preset NAME, or name a file",
                code="output_is_standard_output",
            )
        typer.echo("Press Enter to accept the answer in brackets. Nothing is written before the last question.\n")
        values = spec_values(ask(_read, _tell, given))
    text = with_schema_line(job_text(values), output)
    job = load_text(text, str(output)).job
    write_output(output, text)
    schema = write_schema(output)
    if as_json:
        print_json({"path": str(output), "job": job.model_dump(mode="json")})
    elif output != PRINTED:
        typer.echo(
            f"wrote {output}{f' and {schema}, by which editors check it' if schema else ''}. {_next_steps(output, job)}"
        )


def _next_steps(output: Path, job: JobSpec) -> str:
    made = [entry.path for entry in job.data.blend or [] if entry.text]
    first = f", orchestrator data prepare {output} (makes {', '.join(made)}; run does so too)" if made else ""
    return f"Next: orchestrator validate {output}{first}, then orchestrator run {output}"


def _refuse_overwriting(output: Path, force: bool) -> None:
    if output == PRINTED:
        return
    if output.is_dir():
        raise UserError(
            f"{output} is a folder; -o needs the file to write, such as {output / 'job.yaml'}", code="output_is_folder"
        )
    if output.exists() and not force:
        raise UserError(
            f"{output} already exists: choose another file with -o, or overwrite it with --force", code="output_exists"
        )


def _overridden(values: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The values with `KEY=VALUE` overrides among them, typed by the schema."""
    if not overrides:
        return values
    try:
        job = load_text(job_text(values), _DEFAULTS, overrides).job
    except SpecError as error:
        raise SpecError(problems=[_unplaced(problem) for problem in error.problems]) from error
    for override in overrides:
        path = overridden(override)
        values = {key: value for key, value in values.items() if key != path and not key.startswith(f"{path}.")}
        value = _value_at(job, path)
        if value is not None:
            values[path] = value
    return values


def _unplaced(problem: Problem) -> Problem:
    """A problem without a line of the defaults: they are not in a file yet."""
    hint = re.sub(rf"\b({_DEFAULTS}):\d+:\d+", r"\1", problem.hint) if problem.hint else None
    if problem.location is None or problem.location.source != _DEFAULTS:
        return replace(problem, hint=hint)
    return replace(problem, hint=hint, location=Location(_DEFAULTS))


def _value_at(job: JobSpec, path: str) -> Any:
    value: Any = job.model_dump(mode="json")
    for key in path.split("."):
        value = value[key.strip()]
    return value


def _read(text: str, default: str) -> str:
    answer: str = typer.prompt(text, default=default)
    return answer


def _tell(reason: str) -> None:
    typer.echo("".join(f"  {line}\n" for line in reason.splitlines()), nl=False)
