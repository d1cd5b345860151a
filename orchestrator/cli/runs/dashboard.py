"""`orchestrator dashboard`: the review pages."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson
from orchestrator.cli.listening import Host, Port, Token, check_token
from orchestrator.errors import MissingDependency, UserError
from orchestrator.http.listening import TOKEN_VARIABLE, is_loopback, listen
from orchestrator.run_directory.rundir import RUNS_DIR_VARIABLE, default_runs_dir
from orchestrator.safe_path import module_command

_NEEDED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "jinja2": "jinja2",
    "plotly": "plotly",
    "django_htmx": "django-htmx",
}


RunsDir = Annotated[
    Path | None,
    typer.Option(
        "--runs-dir",
        "--runs",
        metavar="DIR",
        help=f"Folder of the runs; by default ${RUNS_DIR_VARIABLE} or `runs` in the current directory.",
        show_default=False,
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="Another host name by which browsers may reach it, behind a proxy."
    ),
]
AllowActions = Annotated[
    bool,
    typer.Option(
        "--allow-actions",
        help="Let visitors cancel, resume and retry runs, which needs a token; otherwise it is read-only.",
    ),
]


def command(
    runs_dir: RunsDir = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    token: Token = None,
    allow_host: AllowHost = None,
    allow_actions: AllowActions = False,
    as_json: AsJson = False,
) -> None:
    """Show the runs of a folder in a browser, live, until Ctrl-C. It stores nothing itself.

    Over ssh: ssh -L 8080:localhost:8080 LOGIN-NODE, and open http://localhost:8080 at home.

    \b
    Example:
      orchestrator dashboard
      orchestrator dashboard --runs-dir /shared/runs --port 9000 --allow-actions
    """
    folder = (runs_dir or default_runs_dir()).absolute()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of runs: name it with --runs-dir", code="not_a_folder")
    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingDependency(
            f"the dashboard needs {', '.join(missing)}, which this Python lacks: "
            "pip install 'megatron-orchestrator[dashboard]'"
        )
    check_token(token)
    loopback = is_loopback(host)
    # Whoever shares a login node reaches its loopback address: to look, but not to act.
    if token is None and (allow_actions or not loopback):
        token = secrets.token_urlsafe(24)
    if token is not None:
        os.environ[TOKEN_VARIABLE] = token
    listen(host, port).close()
    arguments = module_command(
        "orchestrator.dashboard",
        str(folder),
        f"--host={host}",
        f"--port={port}",
        *(f"--allow-host={name}" for name in allow_host or []),
        *(["--loopback"] if loopback else []),
        *(["--allow-actions"] if allow_actions else []),
        *(["--json"] if as_json else []),
    )
    sys.stdout.flush()
    os.execv(sys.executable, arguments)
