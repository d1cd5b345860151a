"""`orchestrator render`: the script that `run` would start, or Megatron-LM's flags for the same job."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir, print_json, warn
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import as_yaml, shorten
from orchestrator.kernel_selection.cuda_connections import CONNECTIONS, device_connections
from orchestrator.launch.continuation import find_continuation
from orchestrator.launch.runs import next_run_dir
from orchestrator.launch.scripts.render import render, render_template
from orchestrator.migration.megatron_flags.flag_writer import UnwrittenField
from orchestrator.migration.to_megatron import MegatronCommand, to_megatron
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

MEGATRON_TEMPLATE = "megatron-lm.sh.j2"


class OutputFormat(StrEnum):
    """What a job is rendered as."""

    ORCHESTRATOR = "orchestrator"
    MEGATRON_LM = "megatron-lm"


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    new: Annotated[bool, typer.Option("--new", help="As `run --new` would start it.")] = False,
    runs_dir: RunsDir = None,
    form: Annotated[
        OutputFormat,
        typer.Option("--as", help="Our own launch script, or a script of Megatron-LM's flags for the job."),
    ] = OutputFormat.ORCHESTRATOR,
    as_json: AsJson = False,
) -> None:
    """Print the exact launch script that `run` would start, on standard output. Nothing is created.

    With --as megatron-lm: the flags that tell Megatron-LM the same, and in comments what they do not say.

    \b
    Example:
      orchestrator render job.yaml
      orchestrator render job.yaml --set launch.python=/opt/venv/bin/python > launch.sh
      orchestrator render job.yaml --as megatron-lm > pretrain_gpt.sh
    """
    loaded = load_job(jobs, overrides or [])
    job = loaded.job
    if form is OutputFormat.MEGATRON_LM:
        _print_megatron(job, as_json)
        return
    folder = runs_dir_of(job, runs_dir)
    found = None if new else find_continuation(job, loaded.text, folder, warn=warn)
    run = found.run if found is not None and found.is_settled else next_run_dir(job, folder)
    script = render(job, run_dir=run.path, python=sys.executable)
    if as_json:
        print_json({"run_dir": str(run.path), "script": script})
    else:
        typer.echo(script, nl=False)


def _print_megatron(job: JobSpec, as_json: bool) -> None:
    script, command = megatron_script(job)
    if as_json:
        unsaid = [{"path": each.path, "reason": each.reason} for each in command.unsaid]
        otherwise = [{"path": each.path, "reason": each.reason} for each in command.otherwise]
        print_json({"script": script, "flags": command.words, "unsaid": unsaid, "otherwise": otherwise})
    else:
        typer.echo(script, nl=False)


def megatron_script(job: JobSpec) -> tuple[str, MegatronCommand]:
    """A script that starts Megatron-LM with the flags of a job, and those flags."""
    command = to_megatron(job)
    environment = {CONNECTIONS: str(device_connections(job)), **dict(command.environment)}
    context = {
        "name": job.name,
        "program": command.program,
        "nodes": command.nodes,
        "processes_per_node": command.processes_per_node,
        "environment": sorted(environment.items()),
        "groups": command.groups,
        "remarks": [
            ("Without a flag of Megatron-LM, and not said:", [_remark(each) for each in command.unsaid]),
            ("Said in other words:", [_remark(each) for each in command.otherwise]),
        ],
    }
    return render_template(None, MEGATRON_TEMPLATE, context), command


def _remark(unsaid: UnwrittenField) -> str:
    return shorten(f"{unsaid.path}: {as_yaml(_plain(unsaid.value))} ({unsaid.reason})", 300)


def _plain(value: object) -> object:
    if isinstance(value, Section):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in value] if isinstance(value, list) else value
