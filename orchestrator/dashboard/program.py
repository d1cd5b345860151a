"""`python -m orchestrator.dashboard RUNS_DIR …`: the server, until it is interrupted."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.settings import Settings
from orchestrator.http.listening import TOKEN_VARIABLE, listen
from orchestrator.http.server import Server

_SWITCH_SECONDS = 0.0005
"""A page waits so long for the threads that read runs, each time that it waits for anything; Python's 5 ms add up."""
_ARENA_MAX, _ARENAS = -8, 1
"""glibc's M_ARENA_MAX: threads that read logs share what one of them has freed, in place of an arena each."""
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve. The command has checked the arguments; the token comes by a variable, which no list of processes shows."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.dashboard")
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--allow-host", action="append", default=[])
    parser.add_argument("--allow-actions", action="store_true")
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    token = os.environ.pop(TOKEN_VARIABLE, None)
    hosts = _OWN_NAMES | {asked.host} | set(asked.allow_host) if asked.loopback else None
    settings = Settings(asked.runs_dir.absolute(), token, hosts, asked.allow_actions)

    sys.setswitchinterval(_SWITCH_SECONDS)
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)
    app = create_app(settings)
    with listen(asked.host, asked.port) as listening:
        port = listening.getsockname()[1]
        name = f"[{asked.host}]" if ":" in asked.host else asked.host
        address = f"http://{name}:{port}/" + (f"?token={token}" if token else "")
        said = json.dumps({"address": address, "runs_dir": str(settings.runs_dir)}) if asked.json else address
        print(said if asked.json else f"the dashboard of {settings.runs_dir}: {said}  (Ctrl-C ends it)", flush=True)
        Server(app).run(sockets=[listening])
    return 0
