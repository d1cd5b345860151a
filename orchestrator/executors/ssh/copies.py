"""`launch.copy_to`: a run on a host that shares no folder with this machine, copied there and back by `rsync` over the
user's own `ssh`.

On the host, COPY_TO/NAME/RUN_ID is the run directory, and `code/` in it has the code and, where the job names them by
relative paths, data sets and tokenizers. Before a start the host gets the run directory as it is here; what the ranks
write comes back while they run. What a host has written since it was last heard of comes back first, if no other one
has had the run in the meantime.
"""

from __future__ import annotations

import glob
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.executors.ssh.options import SSH
from orchestrator.launch.code.snapshot import copy_code
from orchestrator.launch.executor_protocol import Place
from orchestrator.launch.hosts import run_on_hosts
from orchestrator.run_directory.rundir import RunDir, append_lines, read_lines, write_atomically
from orchestrator.spec.job import JobSpec

_LAST = "copy.json"
_OURS = (
    *("/code", "/code.*", "/events.jsonl", "/job.yaml", "/launch.sh", "/resolved*.json", "/stop", "/sweep.json"),
    *("/logs/launcher.log", "/logs/hosts.json", f"/logs/{_LAST}", ".*.tmp"),
)
"""What is written here, and no rank writes."""
_LARGE = ("checkpoints", "exports")
_FROM_HOST = "events-of-host.jsonl"
_RSYNC = ["rsync", "-rlpt", "--partial", "-e", shlex.join(SSH)]
_SECONDS_BETWEEN = 2.0
_ATTEMPTS = 3
_MOST_WORDS = 300


@dataclass(frozen=True)
class CodeCopy:
    """The code of a launch, as it is sent to any of its hosts."""

    place: Place
    """Where the run works there."""
    source: Path
    data: tuple[str, ...]
    """Relative paths that the job names."""

    def command(self, host: str) -> list[list[str]]:
        """The programs that send it, one after the other."""
        code, work = self.place.run.path / "code", self.place.working_directory
        # Links that lead out of the repository lead nowhere on the host, and data in it stays there.
        kept = [f"--filter=P /{work.relative_to(code) / name}" for name in self.data]
        commands = [[*_sending(code), "--safe-links", "--delete", *kept, f"{self.source}/", f"{_remote(host, code)}/"]]
        if self.data:
            commands.append([*_sending(work), "--copy-links", "--relative", *self.data, f"{_remote(host, work)}/"])
        return commands


@contextmanager
def code_copy(run: RunDir, job: JobSpec, python: str) -> Iterator[CodeCopy]:
    """The code of this moment, for as long as it may have to be sent. Raises UserError and OSError."""
    there = run_on_hosts(run, job.launch)
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-code-"))
    try:
        taken = copy_code(run, folder).moved(folder, there.path / "code")
        place = Place(there, taken.working_directory, python, taken.python_path)
        yield CodeCopy(place, folder, tuple(sorted(_relative_data(job))))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _relative_data(job: JobSpec) -> set[str]:
    """The files of data sets and tokenizers that the job names by paths from the working directory."""
    data, found = job.data, set[str]()
    for entry in (*(data.blend or ()), *(data.validation or ()), *(data.test or ())):
        found |= set(glob.glob(f"{glob.escape(entry.path)}.*"))
    found |= {path for path in (data.tokenizer.path, data.tokenizer.merges) if path is not None and Path(path).exists()}
    return {os.path.normpath(path) for path in found if not os.path.isabs(path) and ".." not in Path(path).parts}


class RunCopy:
    """The run directory here and on a host, for one launch."""

    def __init__(self, run: RunDir, there: RunDir, host: str) -> None:
        self._run, self._there, self._host = run, _remote(host, there.path), host
        self._send = _sending(there.path)
        self._small, self._large = _Repeated(self._small_files()), _Repeated(self._large_files("--delete-delay"))

    def send(self, wait: Callable[[float], None]) -> str | None:
        """Have the host get the run as it is here, and what it has that is newer before; why that failed."""
        if self._run.read_object(self._run.logs / _LAST).get("host") == self._host and (why := self._recover(wait)):
            return why
        write_atomically(self._run.logs / _LAST, json.dumps({"host": self._host}))
        kept = [f"--exclude={name}" for name in ("/code", f"/logs/{_LAST}", f"/logs/{_FROM_HOST}")]
        return _done([[*self._send, "--delete", *kept, f"{self._run.path}/", f"{self._there}/"]], wait)

    def poll(self) -> None:
        """Have what the ranks have written brought back, without waiting for it."""
        self._large.poll()
        if self._small.poll():
            self._merge_events()

    def end(self, wait: Callable[[float], None] | None) -> str | None:
        """Bring back what there is, and wait for that; why that failed. Nothing from a host that is lost (None)."""
        self._small.end()
        self._large.end()
        if wait is None:
            return None
        why = _done([*self._large_files("--delete-delay"), *self._small_files()], wait)
        self._merge_events()
        return why

    def _recover(self, wait: Callable[[float], None]) -> str | None:
        # Nothing is deleted here: the folder there may be gone.
        why = _done([*self._large_files(), *self._small_files()], wait)
        self._merge_events()
        return None if why is not None and "No such file or directory" in why else why

    def _small_files(self) -> list[list[str]]:
        without = [f"--exclude={name}" for name in (*_OURS, *(f"/{name}" for name in _LARGE))]
        # In place: whoever follows a log has it open.
        files = [*_RSYNC, "--inplace", *without, f"{self._there}/", f"{self._run.path}/"]
        return [files, [*_RSYNC, f"{self._there}/events.jsonl", str(self._run.logs / _FROM_HOST)]]

    def _large_files(self, *options: str) -> list[list[str]]:
        folders = [f"--include=/{name}/***" for name in _LARGE]
        # A checkpoint is seen here once it is whole, with its commit marker.
        return [
            [*_RSYNC, "--delay-updates", *options, *folders, "--exclude=*", f"{self._there}/", f"{self._run.path}/"]
        ]

    def _merge_events(self) -> None:
        """Append what the ranks have written into the event log there."""
        with suppress(FileNotFoundError):
            known = {json.dumps(event) for event in read_lines(self._run.events_file)}
            new = [event for event in read_lines(self._run.logs / _FROM_HOST) if json.dumps(event) not in known]
            if new:
                append_lines(self._run.events_file, new)


class _Repeated:
    """Programs that are run again and again, one after the other."""

    def __init__(self, commands: list[list[str]]) -> None:
        self._command = _one_after_the_other(commands)
        self._process: subprocess.Popen[bytes] | None = None
        self._due = 0.0

    def poll(self) -> bool:
        """Whether they have ended just now; begins them again when it is time."""
        if self._process is None:
            if time.monotonic() > self._due:
                self._process = _begin(self._command, subprocess.DEVNULL)
            return False
        if self._process.poll() is None:
            return False
        self._process, self._due = None, time.monotonic() + _SECONDS_BETWEEN
        return True

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def shell_line(commands: list[list[str]]) -> str:
    """Programs that run one after the other while each succeeds."""
    return " && ".join(shlex.join(command) for command in commands)


def _one_after_the_other(commands: list[list[str]]) -> list[str]:
    return ["sh", "-c", shell_line(commands)]


def _begin(command: list[str], errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)


def _done(commands: list[list[str]], wait: Callable[[float], None]) -> str | None:
    """Run programs one after the other, some times where they fail; the last word of the one that did."""
    said = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            wait(_SECONDS_BETWEEN)
        with tempfile.TemporaryFile() as errors:
            process = _begin(_one_after_the_other(commands), errors.fileno())
            while process.poll() is None:
                wait(0.1)
            if process.returncode == 0:
                return None
            errors.seek(0)
            lines = errors.read().decode(errors="replace").split("\n")
            said = next((line for line in lines if line.strip()), f"rsync ended with {process.returncode}")
    return said.strip()[:_MOST_WORDS]


def _remote(host: str, folder: Path) -> str:
    """A folder on a host, as rsync takes it: an address of IPv6 in brackets."""
    user, at, name = host.rpartition("@")
    return f"{user}{at}{f'[{name}]' if ':' in name else name}:{folder}"


def _sending(folder: Path) -> list[str]:
    """rsync to a folder on a host, which is made with those above it."""
    return [*_RSYNC, f"--rsync-path=mkdir -p {shlex.quote(str(folder))} && rsync"]
