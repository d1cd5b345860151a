"""`orchestrator render`: the script that `run` would start, or the same job for Megatron-LM or Kubernetes."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir, print_json, warn
from orchestrator.errors import UserError
from orchestrator.executors.kubernetes.manifest import (
    DEFAULT_SECRET,
    Claim,
    Setting,
    manifest_text,
    render_manifest,
)
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import as_yaml, shorten
from orchestrator.kernel_selection.cuda_connections import CONNECTIONS, megatron_connections
from orchestrator.launch.continuation import find_continuation
from orchestrator.launch.runs import next_run_dir
from orchestrator.launch.scripts.render import render, render_template
from orchestrator.migration.megatron_flags.flag_writer import UnwrittenField
from orchestrator.migration.to_megatron import MegatronCommand, to_megatron
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, load_job

MEGATRON_TEMPLATE = "megatron-lm.sh.j2"


class OutputFormat(StrEnum):
    """What a job is rendered as."""

    ORCHESTRATOR = "orchestrator"
    MEGATRON_LM = "megatron-lm"
    KUBERNETES = "kubernetes"


_POD = "Kubernetes"


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    new: Annotated[bool, typer.Option("--new", help="Render the script of `run --new`.")] = False,
    runs_dir: RunsDir = None,
    form: Annotated[
        OutputFormat,
        typer.Option("--as", help="Our own launch script, a script with Megatron-LM's flags, or a Kubernetes JobSet."),
    ] = OutputFormat.ORCHESTRATOR,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Container image of the pods.", rich_help_panel=_POD)
    ] = None,
    claims: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="CLAIM:/PATH[:ro]",
            help="A PersistentVolumeClaim and its mount path; may be repeated. The first is the working directory.",
            rich_help_panel=_POD,
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace; kubectl's by default.", rich_help_panel=_POD)
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Secret with the values that ${{env:NAME}} and trackers need; {DEFAULT_SECRET} by default.",
            rich_help_panel=_POD,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the exact launch script that `run` would start, on standard output. Nothing is created.

    With --as megatron-lm: the corresponding flags of Megatron-LM, and comments on what they cannot express. With --as
    kubernetes: a JobSet and a ConfigMap with the spec, printed but not created.

    \b
    Example:
      orchestrator render job.yaml
      orchestrator render job.yaml --set launch.python=/opt/venv/bin/python > launch.sh
      orchestrator render job.yaml --as megatron-lm > pretrain_gpt.sh
      orchestrator render job.yaml --as kubernetes --image IMAGE --claim work:/shared | kubectl create -f -
    """
    given = {"--image": image, "--claim": claims, "--namespace": namespace, "--secret": secret}
    loaded = load_job(jobs, overrides or [])
    job = loaded.job
    if form is OutputFormat.KUBERNETES:
        setting = Setting(image or "", [*map(Claim.parse, claims or [])], namespace, secret or DEFAULT_SECRET)
        _print_manifest(loaded, setting, runs_dir, as_json)
        return
    if unused := [name for name, value in given.items() if value]:
        raise UserError(
            f"{' and '.join(unused)} would have no effect without --as kubernetes: add it, or leave the option out",
            code="option_without_effect",
        )
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


def _print_manifest(loaded: LoadedJob, setting: Setting, runs_dir: Path | None, as_json: bool) -> None:
    folder = None if runs_dir is None else str(runs_dir)
    objects = render_manifest(loaded.job, loaded.text, setting, folder)
    if as_json:
        print_json({"objects": objects})
    else:
        typer.echo(manifest_text(objects), nl=False)


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
    environment = {CONNECTIONS: str(megatron_connections(job)), **dict(command.environment)}
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
