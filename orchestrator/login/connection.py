"""A connection to the agent on a login node, by the user's own `ssh`. Commands share one connection of ssh."""

from __future__ import annotations

import hashlib
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import ConnectionLost, MissingDependency, UserError
from orchestrator.login import agent
from orchestrator.login.archives import Archive
from orchestrator.spec.cluster import ClusterSpec

# A login node that does not answer is given up after 15 seconds.
_OPTIONS = {"ConnectTimeout": "10", "ServerAliveInterval": "5", "ServerAliveCountMax": "3"}
_SHARED = {"ControlMaster": "auto", "ControlPersist": "60"}
_BOOT = "import sys;s=sys.stdin.buffer;exec(compile(s.read(int(s.readline())),'agent','exec'))"
_SECONDS_TO_ANSWER = 60.0
_SECONDS_TO_END = 3.0
_MOST_WORDS = 300
_AT_ONCE = 1 << 16


class Connection:
    """An agent, and what it says. Raises ConnectionLost where the connection ends, and UserError where it refuses."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self._cluster = cluster
        self.has_answered = False
        """Whether the agent has said anything."""
        self._words = b""
        self._messages: queue.Queue[tuple[str, Any, int]] = queue.Queue()
        try:
            self._process = subprocess.Popen(
                [*_ssh(str(cluster.login)), _command(cluster)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,  # a Ctrl-C is for the command, not for its connection
            )
        except FileNotFoundError as error:
            raise _no_ssh() from error
        for target in (self._read, self._read_errors):
            threading.Thread(target=target, daemon=True).start()
        program = Path(agent.__file__).read_bytes()
        self._write(f"{len(program)}\n".encode() + program)

    def agree(self, folder: str, archives: dict[str, Archive]) -> None:
        """Say where the project is there, and send what the agent does not have."""
        keys = {kind: archive.key() for kind, archive in archives.items()}
        self.say("hello", {"folder": folder, "archives": keys})
        for kind in self._answer("ready")["needs"]:
            self._send(kind, keys[kind], archives[kind])

    def request(self, request: dict[str, Any]) -> None:
        """Have a command started, or go on with one of an earlier connection."""
        self.say("request", request)

    def say(self, kind: str, content: Any) -> None:
        """Send a message. A connection that is gone is found out by `next`."""
        self._write(agent.message(kind, content))

    def next(self, seconds: float) -> tuple[str, Any, int] | None:
        """The next message with the length of its line; None where none comes within that time."""
        try:
            found = self._messages.get(timeout=seconds)
        except queue.Empty:
            return None
        if found[0] == "":
            raise self._lost()
        return found

    def forward(self, here: int, there: int) -> subprocess.Popen[bytes]:
        """Have a port of this machine lead to one of the login node, until the process that is returned ends."""
        ports = f"127.0.0.1:{here}:127.0.0.1:{there}"
        options = [*_ssh_options(str(self._cluster.login)), "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]
        command = ["ssh", *options, "-N", "-T", "-L", ports, "--", str(self._cluster.login)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)

    def close(self) -> None:
        """End it; what the agent keeps goes on."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)  # what was said last arrives
        self._process.terminate()
        self._process.wait()

    def _answer(self, kind: str) -> Any:
        found = self.next(_SECONDS_TO_ANSWER)
        if found is None:
            raise ConnectionLost("it does not answer")
        if found[0] == "refused":
            raise UserError(f"{self._cluster.login}: {found[1]}", code="login_node_cannot_serve")
        return found[1] if found[0] == kind else self._answer(kind)

    def _send(self, kind: str, key: str, archive: Archive) -> None:
        with tempfile.TemporaryFile() as packed:
            archive.pack(packed)
            size = packed.tell()
            packed.seek(0)
            digest = hashlib.file_digest(packed, "sha256").hexdigest()
            self.say("archive", {"kind": kind, "key": key, "bytes": size, "sha256": digest})
            packed.seek(0)
            while data := packed.read(_AT_ONCE):
                self._write(data)
        self._answer("unpacked")

    def _lost(self) -> ConnectionLost | UserError:
        code = self._process.poll()
        lines = self._words.decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        words = said[-1][:_MOST_WORDS] if said else "the connection has ended"
        if code is not None and 0 <= code < agent.CONNECTION_LOST and not self.has_answered:
            return UserError(
                f"{self._cluster.login}: {words}", code="unreachable_login_node"
            )  # of the shell there, or of its Python
        return ConnectionLost(words)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (found := agent.read_message(line)) is not None:
                self.has_answered = True
                self._messages.put((*found, len(line)))
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its last words are there by then
        self._messages.put(("", None, 0))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words = (self._words + line)[-4096:]


def run_at(
    login: str, command: Sequence[str], *, seconds: float = _SECONDS_TO_ANSWER
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a login shell of a login node.

    Raises UserError when the node cannot be reached, and ConnectionLost when there is no answer in time.
    """
    try:
        done = subprocess.run(
            [*_ssh(login), f"exec bash -lc {shlex.quote(shlex.join(command))}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise _no_ssh() from error
    except subprocess.TimeoutExpired as error:
        raise ConnectionLost(
            f"{login} did not answer {command[0]} within {seconds:g} s: try again later",
            code="login_node_did_not_answer",
        ) from error
    if done.returncode == agent.CONNECTION_LOST:
        raise unreachable(login, done.stderr.strip()[-_MOST_WORDS:] or "the connection has ended")
    return done


def unreachable(login: str, words: str) -> UserError:
    """The error of a login node to which there is no connection."""
    return UserError(
        f"{login} cannot be reached: {words}\n      Does `ssh {login}` work?", code="unreachable_login_node"
    )


def _no_ssh() -> MissingDependency:
    return MissingDependency("there is no `ssh` here, which commands reach a login node by")


def _ssh(login: str) -> list[str]:
    """A command line that lacks only the command to run. If a person is to be asked for a password, it is now, for a
    connection that others then share.
    """
    options = _ssh_options(login)
    if sys.stdin.isatty():
        subprocess.run(["ssh", *options, "-T", "--", login, "true"], check=False)
    return ["ssh", *options, "-o", "BatchMode=yes", "-T", "--", login]


def _ssh_options(login: str) -> list[str]:
    """Options for one connection that commands share, unless the user's own settings say how."""
    settings = dict(_OPTIONS)
    if not _are_shared(login):
        folder = Path.home() / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        settings |= {**_SHARED, "ControlPath": f"{folder / 'orchestrator-%C'}"}
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _are_shared(login: str) -> bool:
    """Whether connections are shared, and stay for a while, by the user's own settings."""
    done = subprocess.run(["ssh", "-G", "--", login], capture_output=True, text=True, timeout=10, check=False)
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    nothing = {"none", "no", "false"}
    return not nothing & {settings.get(name, "no") for name in ("controlmaster", "controlpath", "controlpersist")}


def _command(cluster: ClusterSpec) -> str:
    """What the shell there runs: a Python with the agent, as a login shell finds it."""
    lines = [f"module load {shlex.quote(module)}" for module in cluster.modules]
    if cluster.virtual_env is not None:
        lines.append(f"source {shlex.quote(cluster.virtual_env)}/bin/activate")
    python = cluster.python or ("python" if cluster.virtual_env is not None else "python3")
    lines.append(f"exec {shlex.quote(python)} -I -c {shlex.quote(_BOOT)}")
    return f"exec bash -lc {shlex.quote(' && '.join(lines))}"
