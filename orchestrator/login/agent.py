"""The agent on a login node. Each connection sends this file, which imports the standard library alone, and runs it.

It unpacks what the other side sends, starts a command at most once, and passes on what it prints. The command belongs
to a keeper of its own, and all that connects the two is a folder of files:

    requests/ID/command.json   what to run
    requests/ID/started        made once; its time of change says that the keeper is alive
    requests/ID/output         lines of messages, which a later connection reads on from any place
    requests/ID/input          lines of messages to the command: what is typed, signals, signs of life
    requests/ID/ended          the exit code

A connection that breaks, an agent that dies and another login node behind the same name take nothing from the command.

Messages are lines of JSON with one key. To the agent: `hello`, `archive` (its bytes follow), `request`, `input`,
`signal`, `here`, `thanks`. From it: `ready`, `unpacked`, `out`, `ended`, `gone`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

HOME = ".orchestrator"
"""The agent's folder in the project's folder."""
SECONDS_BETWEEN_SIGNS = 5.0
SECONDS_WITHOUT_SIGN = 30.0
"""An agent ends that hears nothing for so long."""
SECONDS_UNTIL_LEFT = 75.0
"""A command that only shows something is ended when nobody has listened for so long; another hears the end of input."""
SECONDS_OF_ANY = 900.0
"""The most that a command may go on for when nobody listens."""
SECONDS_TO_END = 10.0
CONNECTION_LOST = 255
"""Exit code of ssh where the connection is at fault, and not the program."""
_POLL_SECONDS = 0.05
_AT_ONCE = 1 << 16
_KEPT_SECONDS = 14 * 86400.0
"""For how long what is not used any more is kept."""


def message(kind: str, content: Any) -> bytes:
    """A line that says something."""
    return json.dumps({kind: content}).encode() + b"\n"


def read_message(line: bytes) -> tuple[str, Any] | None:
    """Its kind and content; None for a line that is no message: a login shell may print anything first."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return next(iter(record.items())) if isinstance(record, dict) and len(record) == 1 else None


def encoded(data: bytes) -> str:
    """Bytes as text of a message."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    """The bytes of `encoded`."""
    return base64.b64decode(text)


def main() -> int:
    """Serve one connection, over standard input and output."""
    source = sys.stdin.buffer
    _hear()
    _, hello = _next(source)
    folder = Path(hello["folder"]).expanduser().absolute()
    home = folder / HOME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        _say("refused", f"{folder} cannot be made there: {error.strerror}")
        return 1
    _prune(home)
    needs = [kind for kind, key in hello["archives"].items() if not _archive(home, kind, key).is_dir()]
    _say("ready", {"folder": str(folder), "needs": needs})
    while True:
        kind, content = _next(source)
        if kind == "archive":
            _unpack(source, home, content)
        elif kind == "request":
            return _serve(source, folder, home, content)
        elif kind == "":
            return 1


def _next(source: BinaryIO) -> tuple[str, Any]:
    """The next message; an empty kind at the end of the connection."""
    while line := source.readline():
        _hear()
        if (found := read_message(line)) is not None:
            return found
    return "", None


def _hear() -> None:
    """Note that the other side is there. Where nothing is heard of it, the process ends: a network that is cut ends no
    connection, and what is written to it can block for ever.
    """
    signal.alarm(int(SECONDS_WITHOUT_SIGN))


def _say(kind: str, content: Any) -> None:
    sys.stdout.buffer.write(message(kind, content))
    sys.stdout.buffer.flush()


def _archive(home: Path, kind: str, key: str) -> Path:
    return home / kind / key


def _prune(home: Path) -> None:
    """Remove what was not used for two weeks: runs have copies of the code that they were submitted with."""
    for path in home.glob("*/*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _unpack(source: BinaryIO, home: Path, about: dict[str, Any]) -> None:
    """Read an archive from the connection, and put its files in place when they are whole."""
    target = _archive(home, about["kind"], about["key"])
    target.parent.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        digest, left = hashlib.sha256(), int(about["bytes"])
        with tempfile.TemporaryFile(dir=home) as packed:
            while left and (data := source.read(min(left, _AT_ONCE))):
                _hear()
                digest.update(data)
                packed.write(data)
                left -= len(data)
            if digest.hexdigest() != about["sha256"]:
                return  # the connection broke
            packed.seek(0)
            with tarfile.open(fileobj=packed, mode="r:gz") as archive:
                # The filter came with Python 3.11.4. Links may lead out of the project, as they do at home.
                archive.extraction_filter = getattr(tarfile, "tar_filter", None)
                archive.extractall(draft)
        with contextlib.suppress(OSError):  # another connection was faster
            draft.rename(target)
        _say("unpacked", about["kind"])
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _serve(source: BinaryIO, folder: Path, home: Path, request: dict[str, Any]) -> int:
    """Start a command, if no connection has yet, and pass on what it prints."""
    place = home / "requests" / request["id"]
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "command.json").exists():
        _write(place / "command.json", json.dumps(_command(folder, home, request)).encode())
    if not (place / "started").exists():
        _start_keeper(place, home)
    return _attend(source, place, int(request["offset"]))


def _command(folder: Path, home: Path, request: dict[str, Any]) -> dict[str, Any]:
    """What is to be run, with the folders of this machine."""
    archives = {kind: _archive(home, kind, key) for kind, key in request["archives"].items()}
    for path in archives.values():
        with contextlib.suppress(OSError):
            os.utime(path)
    search_path = [str(archives["package"]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**request["variables"], "PYTHONPATH": os.pathsep.join(search_path)}
    runs = folder / request["runs_dir"]
    variables["ORCHESTRATOR_RUNS_DIR"] = str(runs)
    working_directory, project = folder, archives.get("project")
    if project is not None:
        runs.mkdir(parents=True, exist_ok=True)
        _link(folder, project / "tree")
        working_directory = project / "tree" / request["working_directory"]
        variables["ORCHESTRATOR_PROJECT"] = str(project)
    places = {**archives, "python": Path(sys.executable)}
    words = [word if isinstance(word, str) else str(places[word[0]] / word[1]) for word in request["arguments"]]
    if project is not None:
        words += ["--runs-dir", str(runs)]  # not where the project is unpacked, whatever the job says
    return {
        "arguments": words,
        "variables": variables,
        "working_directory": str(working_directory),
        "only_shows": request["only_shows"],
        "terminal": request["terminal"],
    }


def _link(folder: Path, tree: Path) -> None:
    """Have the code find beside itself what only the project's folder has: data sets, environments, runs."""
    for entry in os.scandir(folder):
        place = tree / entry.name
        if entry.name == HOME:
            continue
        if not place.is_symlink() and not place.exists():
            place.symlink_to(entry.path)
        elif place.is_dir() and not place.is_symlink() and entry.is_dir(follow_symlinks=False):
            _link(Path(entry.path), place)


def _write(path: Path, content: bytes) -> None:
    """A file, whole from the moment it exists."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    draft.write_bytes(content)
    draft.rename(path)


# The keeper of a command


def _start_keeper(place: Path, home: Path) -> None:
    """A process that belongs to no connection. At most one of those that are started keeps the command."""
    if os.fork():
        return
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.close(os.open(place / "started", os.O_CREAT | os.O_EXCL))
        command = json.loads((place / "command.json").read_bytes())
        with open(home / "lock", "w") as lock:
            if not command["only_shows"]:
                _wait_for(lock, place)
            _write(place / "ended", str(_keep(place, command)).encode())
        code = 0
    except FileExistsError:
        pass
    finally:
        os._exit(code)


def _wait_for(lock: IO[str], place: Path) -> None:
    """Commands that change something wait for each other: the same one typed again finds what the first has done."""
    begun = time.monotonic()
    while time.monotonic() - begun < SECONDS_OF_ANY:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.utime(place / "started")
            time.sleep(4 * _POLL_SECONDS)
        except OSError:  # a file system without locks
            return
        else:
            return


def _keep(place: Path, command: dict[str, Any]) -> int:
    """Run a command to its end, with its output and input in files; its exit code as a shell says it."""
    with open(place / "output", "ab", buffering=0) as output:

        def show(stream: int, data: bytes) -> None:
            with contextlib.suppress(OSError):  # of a full disk, which ends no command
                output.write(message("out", [stream, encoded(data)]))

        try:
            child, streams = _started(command)
        except OSError as error:
            show(2, f"error: {error}\n".encode())
            return 1
        _attend_child(place, child, streams, show, only_shows=command["only_shows"])
    if command["only_shows"]:
        _signal(child, signal.SIGKILL)  # what it has left
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _started(command: dict[str, Any]) -> tuple[subprocess.Popen[bytes], dict[int, int]]:
    """The command, in a session of its own, and which of its streams each descriptor reads."""
    environment = {**os.environ, **command["variables"]}
    common: dict[str, Any] = {"cwd": command["working_directory"], "env": environment, "start_new_session": True}
    size = command["terminal"]
    if size is None:
        pipe = subprocess.PIPE
        child = subprocess.Popen(command["arguments"], stdin=pipe, stdout=pipe, stderr=pipe, **common)
        assert child.stdout is not None
        assert child.stderr is not None
        return child, {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    settings = termios.tcgetattr(theirs)
    # The person's own terminal shows what is typed, and ends the lines.
    settings[1] &= ~termios.OPOST
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    child = subprocess.Popen(
        command["arguments"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        **common,
    )
    os.close(theirs)
    return child, {ours: 1}


def _attend_child(
    place: Path,
    child: subprocess.Popen[bytes],
    streams: dict[int, int],
    show: Callable[[int, bytes], None],
    *,
    only_shows: bool,
) -> None:
    """Pass on what the command prints and what is said to it, until it has ended or nobody listens any more."""
    keyboard: int | None = child.stdin.fileno() if child.stdin is not None else next(iter(streams))
    left, heard, shown_alive, ending = dict(streams), time.monotonic(), 0.0, 0.0
    inputs = _Tail(place / "input")
    while True:
        now = time.monotonic()
        if now - shown_alive > 1.0:
            shown_alive = now
            os.utime(place / "started")
            os.utime(place)
        has_ended = child.poll() is not None
        ready = select.select(list(left), [], [], 0.0 if has_ended else _POLL_SECONDS)[0]
        for source in ready:
            try:
                data = os.read(source, _AT_ONCE)
            except OSError:  # a terminal whose last process has ended
                data = b""
            if data:
                show(left[source], data)
            else:
                del left[source]
        if has_ended and not ready:
            return
        for kind, content in inputs.new():
            heard = now
            if kind == "signal":
                _signal(child, int(content))
            elif kind == "input" and keyboard is not None:
                keyboard = _type(child, keyboard, content)
        if now - heard > SECONDS_UNTIL_LEFT and keyboard is not None:
            keyboard = _type(child, keyboard, None)
        if now - heard > (SECONDS_UNTIL_LEFT if only_shows else SECONDS_OF_ANY):
            ending = ending or now
            _signal(child, signal.SIGTERM if now - ending < SECONDS_TO_END else signal.SIGKILL)


def _type(child: subprocess.Popen[bytes], keyboard: int, content: str | None) -> int | None:
    """Give the command what was typed, or the end of it; where more can be given, if anywhere."""
    with contextlib.suppress(OSError):
        if content is not None:
            os.write(keyboard, decoded(content))
            return keyboard
        if child.stdin is not None:
            child.stdin.close()
        else:
            os.write(keyboard, b"\x04")  # a terminal's end of input
    return None


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, number)


class _Tail:
    """The messages of a file that grows."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.offset = offset

    def lines(self) -> bytes:
        """Whole lines that are new."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self.offset)
                data = file.read(_AT_ONCE * 4)
        except FileNotFoundError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole

    def new(self) -> list[tuple[str, Any]]:
        """New messages."""
        return [found for line in self.lines().splitlines() if (found := read_message(line)) is not None]


# A connection's part


def _attend(source: BinaryIO, place: Path, offset: int) -> int:
    """Pass on what the command of a request has printed since `offset`, and to it what is said here, until it ends."""
    threading.Thread(target=_listen, args=(source, place), daemon=True).start()
    output = _Tail(place / "output", offset)
    alive, seen = 0.0, time.monotonic()
    while True:
        has_ended = (place / "ended").exists()  # before the last look
        lines = output.lines()
        if lines:
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
            continue
        if has_ended:
            _say("ended", int((place / "ended").read_bytes()))
            time.sleep(SECONDS_WITHOUT_SIGN)  # until the thread has heard the thanks
            return 0
        now, changed = time.monotonic(), os.path.getmtime(place / "started") if (place / "started").exists() else 0.0
        if changed != alive:
            alive, seen = changed, now
        if now - seen > SECONDS_UNTIL_LEFT:
            _say("gone", None)
            return 1
        time.sleep(_POLL_SECONDS)


def _listen(source: BinaryIO, place: Path) -> None:
    """Write down what is said to the command. The process ends with the connection."""
    while line := source.readline():
        _hear()
        found = read_message(line)
        if found is None:
            continue
        if found[0] == "thanks":
            shutil.rmtree(place, ignore_errors=True)
            break
        with open(place / "input", "ab", buffering=0) as file:
            file.write(line)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
