"""Reading the logs of a run as they grow, across resumes."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.files.stored_files import MOST_BYTES, NotStoredError, lines_from, open_stored
from orchestrator.run_directory.exits.classification import log_files
from orchestrator.run_directory.rundir import RunDir

_TOO_LONG = "(a line of several megabytes is left out)"


class LineTail:
    """Whole lines of a file that grows. A line still being written waits; a file that shrank is read from its start."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.offset = 0
        self._refused = False

    def poll(self) -> list[str]:
        """Some megabytes of lines since the last call; none while there is no such file. What is no file of `folder` is
        said once.
        """
        found = []
        try:
            with open_stored(self.path, self.folder) as file:
                if file.seek(0, os.SEEK_END) < self.offset:
                    self.offset = 0
                for line, end in lines_from(file, self.offset, MOST_BYTES):
                    self.offset = end
                    found.append(line.removesuffix(b"\n").decode(errors="replace") if line else _TOO_LONG)
        except FileNotFoundError:
            return []
        except NotStoredError as error:
            if self._refused:
                return []
            self._refused = True
            return [f"{self.path} is not read: {error.strerror}"]
        return found

    def skip_to_last(self, count: int) -> None:
        """Start at about the last `count` lines, as far as some megabytes before the end."""
        try:
            with open_stored(self.path, self.folder) as file:
                size = file.seek(0, os.SEEK_END)
                begin = max(0, size - MOST_BYTES) if count else size
                file.seek(begin)
                data = file.read(size - begin)
        except (FileNotFoundError, NotStoredError):
            return
        self.offset = size - sum(map(len, data.splitlines(keepends=True)[-count:])) if count else size


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
                tail = self._tails[path] = LineTail(path, self._run.path)
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
