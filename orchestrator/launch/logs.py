"""Reading the logs of a run as they grow, across resumes."""

from __future__ import annotations

from pathlib import Path

from orchestrator.launch.exits import log_files
from orchestrator.rundir import RunDir


class LineTail:
    """Whole lines of a file that grows. A line still being written waits; a file that shrank is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def poll(self) -> list[str]:
        """The lines since the last call; none while there is no such file."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self.offset += len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n") if newline else []

    def skip_to_last(self, count: int) -> None:
        """Start at about the last `count` lines."""
        try:
            data = self.path.read_bytes() if count else b""
            self.offset = len(data) if count else self.path.stat().st_size
        except FileNotFoundError:
            return
        for line in data.splitlines(keepends=True)[-count:] if count else []:
            self.offset -= len(line)


class LogFollower:
    """The logs of a run: the launcher's and every rank's, or one rank's. Each line comes with its file's label."""

    def __init__(self, run: RunDir, rank: int | None, lines: int | None) -> None:
        self._run, self._rank, self._lines = run, rank, lines
        self._tails: dict[Path, LineTail] = {}
        self._first_look = True

    def poll(self) -> list[tuple[str, str]]:
        """(label, line) of everything new."""
        for path in self._paths():
            if path not in self._tails:
                tail = self._tails[path] = LineTail(path)
                if self._first_look and self._lines is not None:
                    tail.skip_to_last(self._lines)
        self._first_look = False
        return [(_label(path), line) for path, tail in self._tails.items() for line in tail.poll()]

    def _paths(self) -> list[Path]:
        if self._rank is not None:
            return [self._run.rank_log(self._rank)]
        data = [self._run.data_log] if self._run.data_log.exists() else []
        return [*data, *log_files(self._run)]


def _label(path: Path) -> str:
    stem = path.stem
    return str(int(stem.removeprefix("rank-"))) if stem.startswith("rank-") else stem
