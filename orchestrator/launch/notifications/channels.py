"""The ways by which a notice leaves: a command, and a webhook. What goes wrong is a sentence, never an exception."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import UserError
from orchestrator.fields.values import resolve_environment
from orchestrator.files.stored_files import open_to_append
from orchestrator.launch.notifications.notice import Notice
from orchestrator.launch.notifications.process import LOG_NAME
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE
from orchestrator.quantities import timestamp
from orchestrator.run_directory.events.types import Notified
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.sections.notifications import NotificationsSpec
from orchestrator.tracking.redaction import Redactor
from orchestrator.version import __version__

_SECONDS_BETWEEN_ATTEMPTS = 1.0
_ATTEMPTS = 2


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET, which tells nobody anything."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def tell(run: RunDir, spec: NotificationsSpec, notice: Notice) -> dict[str, str]:
    """Send a notice of a run by every way there is. Returns what went wrong, by way; an event and a log of the run keep
    it, with no secret in it.
    """
    failed = send(spec, notice, run.logs)
    told = [way for way in spec.ways if way not in failed]
    with contextlib.suppress(OSError):  # a full disk is told of like everything else
        launch_id = notice.facts["launch_id"]
        run.append(Notified(launch_id=launch_id, occasion=notice.occasion, told=tuple(told), failed=failed))
    return failed


def send(spec: NotificationsSpec, notice: Notice, folder: Path) -> dict[str, str]:
    """Send a notice by every way there is. Returns what went wrong, by way; the log in the folder keeps it."""
    redact = Redactor(spec.webhook)
    failed: dict[str, str] = {}
    with _log(folder) as log:
        body = notice.body(spec.webhook_fields)
        for way in spec.ways:
            if way == "command":
                problem = _run(spec.command or (), body, notice.environment(), spec.timeout, log)
            else:
                problem = _post(spec.webhook or "", body, spec.timeout)
            if problem is not None:
                failed[way] = redact(problem)
            said = f"{notice.occasion}: {way}: {failed.get(way, 'told')}"
            with contextlib.suppress(OSError):
                log.write(f"{timestamp()} {said}\n".encode(errors="replace"))
    return failed


def _log(folder: Path) -> IO[bytes]:
    try:
        folder.mkdir(exist_ok=True)
        return open_to_append(folder / LOG_NAME, folder.parent)
    except OSError:
        return open(os.devnull, "wb", buffering=0)


def _run(
    command: Sequence[str], body: Mapping[str, Any], environment: Mapping[str, str], timeout: float, log: IO[bytes]
) -> str | None:
    """Run a command to its end, at most so long; what went wrong."""
    inherited = {name: value for name, value in os.environ.items() if name != LAUNCH_VARIABLE}
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**inherited, **environment},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"{command[0]} cannot be started: {error.strerror if isinstance(error, OSError) else error}"
    try:
        child.communicate(json.dumps(body).encode(), timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"{command[0]} took longer than {timeout:g} s and was ended"
    return f"{command[0]} ended with exit code {child.returncode}" if child.returncode else None


def _post(webhook: str, body: Mapping[str, Any], timeout: float) -> str | None:
    """Post the body as JSON, a second time where the first may have failed by chance; what went wrong."""
    try:
        address = resolve_environment(webhook)
    except UserError as error:
        return str(error)
    if not address.startswith(("http://", "https://")):  # urllib opens files and more
        return "the address of the webhook does not begin with http:// or https://"
    deadline = time.monotonic() + timeout
    problem: str | None = None
    for attempt in range(_ATTEMPTS):
        left = deadline - time.monotonic()
        if attempt:
            time.sleep(min(_SECONDS_BETWEEN_ATTEMPTS, max(0.0, left)))
        if left <= 0:
            break
        problem, by_chance = _attempt(address, json.dumps(body).encode(), left if attempt else timeout / 2)
        if not by_chance:
            break
    return problem


def _attempt(address: str, data: bytes, timeout: float) -> tuple[str | None, bool]:
    """What went wrong, and whether it may go better the next time."""
    headers = {"Content-Type": "application/json", "User-Agent": f"megatron-orchestrator/{__version__}"}
    try:
        request = urllib.request.Request(address, data=data, headers=headers, method="POST")
        with _OPENER.open(request, timeout=timeout):
            return None, False
    except urllib.error.HTTPError as error:
        error.close()
        return f"the webhook responded with status {error.code}", error.code == 429 or error.code >= 500
    except TimeoutError:
        return "the webhook did not answer in time", True
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, TimeoutError):
            return "the webhook did not answer in time", True
        said = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
        return f"the webhook cannot be reached: {said}".replace(address, "its address"), True
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"posting to the webhook failed: {type(error).__name__}", isinstance(error, OSError)
