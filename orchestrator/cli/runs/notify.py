"""`orchestrator notify`: tells of a run now, by the ways of its spec."""

from __future__ import annotations

import typer

from orchestrator.api.starts.run_sentences import label
from orchestrator.cli.common import AsJson, RunName, RunsDir, print_json
from orchestrator.errors import UserError
from orchestrator.launch.notifications.channels import tell
from orchestrator.launch.notifications.notice import notice_of
from orchestrator.launch.notifications.occasions import occasion_of
from orchestrator.launch.notifications.process import LOG_NAME
from orchestrator.launch.runs import find_run
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.spec.loading import load_resolved


def command(run_name: RunName, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Send the status of a run to the command and the webhook of its spec, and wait for the result, to try them out.
    The notification is about the end of the run's last start, or says that it has started, whatever notifications.when
    says.

    \b
    Example:
      orchestrator notify gpt-small
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    job = load_resolved(run.resolved())
    if not job.notifications.ways:
        raise UserError(
            f"run {label(run)} has no notifications: its spec has neither notifications.command nor .webhook",
            code="no_notifications",
        )
    events = run.events()
    launch_id = last.launch_id if (last := events.last_launch) else ""
    notice = notice_of(run, job, launch_id, occasion_of(events, launch_id) or "started")
    failed = tell(run, job.notifications, notice)
    if as_json:
        print_json({"run_id": run.run_id, "occasion": notice.occasion, "text": notice.text, "failed": failed})
    else:
        for way in job.notifications.ways:
            typer.echo(f"{way}: {failed.get(way, 'told')}", err=way in failed)
        typer.echo(f"      ({notice.text.splitlines()[0]}; see {run.logs / LOG_NAME})")
    if failed:
        raise typer.Exit(1)
