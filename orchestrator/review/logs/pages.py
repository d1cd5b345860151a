"""What a run's processes printed, a page at a time: logs may have gigabytes, and a line may have no end."""

from __future__ import annotations

import os
import re
import stat
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from orchestrator.files.stored_files import open_stored, past_a_hole, printable, without_escapes
from orchestrator.review.logs.page_size import fitting
from orchestrator.run_directory.rundir import RunDir

PAGE_LINES = 200
PAGE_BYTES = 40 << 10
"""Of a page's lines as they are sent, so that with all else it has less than 64 KB."""
LINE_BYTES = 120
"""What is sent of a line beside its text and the name of its log."""
_CHUNK_BYTES = 1 << 20
_MOST_READ_BYTES = 2 << 20
"""Of a log for one page."""
LONGEST_LINE = 4000
"""Characters that are shown of a line."""
_MOST_EVIDENCE_FILES = 40
_MOST_EVIDENCE_LINES = 500
MOST_EVIDENCE_BYTES = 256 << 20
_KEPT_COUNTS = 64

_TROUBLE = re.compile(r"\b(?:error|exception|traceback|fatal|critical|killed|segfault)\b|[a-z]Error\b", re.IGNORECASE)


@dataclass(frozen=True)
class LogFile:
    """A file that can be read; `name` is its path within the run directory."""

    name: str
    path: Path
    run_dir: Path
    bytes: int
    changed: float
    """Seconds since the epoch."""

    def open(self) -> BinaryIO:
        """To read. Raises as `stored_files.open_stored`."""
        return open_stored(self.path, self.run_dir)


@dataclass(frozen=True)
class Line:
    """A line as it is shown, counted from 1."""

    number: int
    text: str

    @property
    def is_trouble(self) -> bool:
        """Whether it speaks of an error."""
        return _TROUBLE.search(self.text) is not None


@dataclass(frozen=True)
class Page:
    """Some lines of a log. `begin` and `end`: its bytes from the first of them to after the last, of `size`; `last`:
    where the last of them begins.
    """

    lines: tuple[Line, ...]
    begin: int
    end: int
    size: int
    last: int

    @property
    def is_first(self) -> bool:
        return self.begin == 0

    @property
    def is_last(self) -> bool:
        return self.end >= self.size


def log_list(run: RunDir) -> list[LogFile]:
    """Everything that a run's processes printed: the launcher's log first, ranks in their order, then the others."""
    found = [each for folder in (run.logs, run.stacks) for each in _files_in(run, folder)]
    return sorted(found, key=lambda log: (_order(log.name), log.name))


def first_to_read(logs: Sequence[LogFile]) -> LogFile | None:
    """What a person opens first: the first rank's log; the launcher's where no rank has printed anything."""
    ranks = (log for log in logs if Path(log.name).name.startswith("rank-") and log.bytes)
    return next(ranks, next(iter(logs), None))


def find_log(run: RunDir, name: str) -> LogFile | None:
    """A log by its name; None where there is none. A link that leads out of the run directory is none."""
    return next((log for log in log_list(run) if log.name == name), None)


def _order(name: str) -> int:
    stem = Path(name).name
    if name.startswith("stacks/"):
        return 3
    return 0 if stem == "launcher.log" else 1 if stem.startswith("rank-") else 2


def _files_in(run: RunDir, folder: Path) -> Iterator[LogFile]:
    for path in run.listed(folder):
        try:
            if path.is_symlink():
                run.open(path).close()
            found = path.stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            yield LogFile(f"{folder.name}/{printable(path.name)}", path, run.path, found.st_size, found.st_mtime)


def shown(raw: bytes) -> str:
    """A line as a terminal would leave it: no codes for colours, of a bar that was drawn again and again its last
    state, nothing that is no text, and not more of it than a page can bear.
    """
    text = on_screen(raw).rstrip("\n")
    if len(text) <= LONGEST_LINE:
        return text
    return f"{text[:LONGEST_LINE]} … ({len(text) - LONGEST_LINE:,} more characters)"


def on_screen(raw: bytes) -> str:
    """Lines as a terminal would leave them, each of whatever length."""
    text = without_escapes(raw.decode(errors="replace"))
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return printable(text)


def last_page(log: LogFile, most: int = PAGE_LINES) -> Page:
    """The end of a log."""
    with log.open() as file:
        size = file.seek(0, os.SEEK_END)
        return _ending(log, file, size, most, size)


def page_before(log: LogFile, line: int, most: int = PAGE_LINES) -> Page:
    """The lines of a log that end before a line."""
    with log.open() as file:
        size = file.seek(0, os.SEEK_END)
        return _ending(log, file, _LINES.place_of(log.path, file, line), most, size)


def page_at(log: LogFile, line: int, most: int = PAGE_LINES) -> Page:
    """A log from a line on; one that it does not have is its last."""
    with log.open() as file:
        size = file.seek(0, os.SEEK_END)
        begin = _LINES.place_of(log.path, file, line)
        if begin >= size and size:
            return _ending(log, file, size, most, size)
        return _beginning(log, file, begin, most, size)


def page_from(log: LogFile, begin: int, most: int = PAGE_LINES) -> Page:
    """What was written since a byte: whole lines only, and `size` is where they end unless the page is full. A log that
    is shorter now was begun anew.
    """
    with log.open() as file:
        size = file.seek(0, os.SEEK_END)
        begin = 0 if begin > size else begin
        page = _beginning(log, file, begin, most, size)
        file.seek(max(0, page.end - 1))
        if page.lines and file.read(1) != b"\n":
            return Page(page.lines[:-1], page.begin, page.last, page.last, page.last)
        return page


def sent_text(name: str, text: str) -> str:
    """What is sent of a line of a log with this name, beside `LINE_BYTES` of markup: its address, and what is read."""
    return quote(name, safe="") + name + text


@dataclass(frozen=True)
class _Placed:
    """A line as it is shown, and its bytes in the log."""

    text: str
    begin: int
    end: int


def _beginning(log: LogFile, file: BinaryIO, begin: int, most: int, size: int) -> Page:
    """A page from a byte on."""
    lines = _fitting(log, _placed(file, begin, most))
    return _page(lines, begin, _LINES.number_at(log.path, file, begin), size)


def _ending(log: LogFile, file: BinaryIO, end: int, most: int, size: int) -> Page:
    """A page that ends at a byte."""
    begin = _back(file, end, most)
    found = list(_placed(file, begin, most, end))
    lines = _fitting(log, reversed(found))[::-1]
    number = _LINES.number_at(log.path, file, begin) + len(found) - len(lines)
    return _page(lines, lines[0].begin if lines else begin, number, size)


def _page(lines: Sequence[_Placed], begin: int, number: int, size: int) -> Page:
    end, last = (lines[-1].end, lines[-1].begin) if lines else (begin, begin)
    shown_lines = tuple(Line(each, line.text) for each, line in enumerate(lines, number))
    return Page(shown_lines, begin, end, max(size, end), last)


def _placed(file: BinaryIO, begin: int, most: int, end: int | None = None) -> Iterator[_Placed]:
    """The lines from a byte on, up to another."""
    file.seek(begin)
    place = begin
    for raw in islice(_lines_of(file), most):
        yield _Placed(shown(raw.content), place, place + raw.bytes)
        place += raw.bytes
        if place - begin > _MOST_READ_BYTES or (end is not None and place >= end):
            return


def _fitting(log: LogFile, lines: Iterable[_Placed]) -> list[_Placed]:
    """The first lines, as many as a page has room for; at least one."""
    return fitting(lines, lambda line: sent_text(log.name, line.text), PAGE_BYTES, LINE_BYTES, at_least=1)


@dataclass
class RawLine:
    """The beginning of a line, and how many bytes it has with its end."""

    content: bytes
    bytes: int


def _lines_of(file: BinaryIO) -> Iterator[RawLine]:
    """The lines from here on; of one without end only the beginning is kept in memory."""
    while first := file.readline(_CHUNK_BYTES):
        count = len(first)
        rest = first
        while not rest.endswith(b"\n") and len(rest) == _CHUNK_BYTES:
            count += 0 if rest.strip(b"\0") else past_a_hole(file)
            rest = file.readline(_CHUNK_BYTES)
            count += len(rest)
        yield RawLine(first, count)


def _back(file: BinaryIO, end: int, lines: int) -> int:
    """Where the last so many lines before a byte begin."""
    place, found, first = end, 0, True
    while place > 0 and end - place < _MOST_READ_BYTES:
        begin = max(0, place - (64 << 10))
        file.seek(begin)
        chunk = file.read(place - begin)
        if first and chunk.endswith(b"\n"):
            chunk = chunk[:-1]
        first = False
        at = len(chunk)
        while (at := chunk.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return begin + at + 1
        place = begin
    return place if place == 0 else _next_line(file, place, end)


def _next_line(file: BinaryIO, place: int, end: int) -> int:
    """The beginning of the next line, or the place itself where the line has no end before `end`."""
    file.seek(place)
    for _ in range(-(-(end - place) // _CHUNK_BYTES)):
        chunk = file.read(min(_CHUNK_BYTES, end - place))
        at = chunk.find(b"\n")
        if at >= 0 and place + at + 1 < end:
            return place + at + 1
    return place


@dataclass
class _Count:
    """How many lines end before some places of a log: (place, lines), one for each megabyte. `identity`: of the file
    that was counted. Whoever counts on holds `lock`; what was counted can be read meanwhile.
    """

    identity: tuple[int, int]
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, file: BinaryIO, place: int) -> None:
        """Count up to the last whole megabyte before a place."""
        if place - self.marks[-1][0] < _CHUNK_BYTES:
            return
        with self.lock:
            file.seek(self.marks[-1][0])
            while place - self.marks[-1][0] >= _CHUNK_BYTES:
                chunk = file.read(_CHUNK_BYTES)
                if len(chunk) < _CHUNK_BYTES:
                    break
                begin, lines = self.marks[-1]
                begin += len(chunk)
                if not chunk.strip(b"\0"):
                    begin = min(begin + past_a_hole(file), max(begin, place - place % _CHUNK_BYTES))
                    file.seek(begin)
                self.marks.append((begin, lines + chunk.count(b"\n")))


class _LineCounts:
    """Line numbers of large logs: each megabyte is counted once. Nobody waits for the counting of another log."""

    def __init__(self) -> None:
        self._counts: OrderedDict[Path, _Count] = OrderedDict()
        self._lock = threading.Lock()

    def number_at(self, path: Path, file: BinaryIO, place: int) -> int:
        """The number of the line that begins at a place, from 1."""
        marks = self._marks(path, file, place)
        begin, lines = marks[bisect_right(marks, place, key=lambda mark: mark[0]) - 1]
        file.seek(begin)
        return lines + file.read(place - begin).count(b"\n") + 1

    def place_of(self, path: Path, file: BinaryIO, line: int) -> int:
        """Where a line begins; the size of the file where it has no such line."""
        size = file.seek(0, os.SEEK_END)
        if line <= 1:
            return 0
        marks = self._marks(path, file, size)
        place, lines = marks[max(bisect_right(marks, line - 2, key=lambda mark: mark[1]) - 1, 0)]
        left = line - 1 - lines
        file.seek(place)
        while chunk := file.read(_CHUNK_BYTES):
            here = chunk.count(b"\n")
            if here >= left:
                at = -1
                for _ in range(left):
                    at = chunk.find(b"\n", at + 1)
                return place + at + 1
            left -= here
            place += len(chunk)
        return size

    def _marks(self, path: Path, file: BinaryIO, place: int) -> list[tuple[int, int]]:
        """What is counted of a file, at least up to the last whole megabyte before a place."""
        found = os.fstat(file.fileno())
        identity = (found.st_dev, found.st_ino)
        with self._lock:
            count = self._counts.pop(path, None)
            if count is None or count.identity != identity or count.marks[-1][0] > found.st_size:
                count = _Count(identity)
            self._counts[path] = count
            while len(self._counts) > _KEPT_COUNTS:
                self._counts.popitem(last=False)
        count.reach(file, place)
        return count.marks


_LINES = _LineCounts()


def closing_lines(run: RunDir, message: str, before: int = 3) -> list[str]:
    """The lines of the logs in which a run's last message stands, from the first log that has it, with those before it;
    else the last lines of its first log. Each as `logs/rank-00003.log:17  what it says`, without the number in a log
    that would take long to count.
    """
    logs = [log for log in log_list(run) if not log.name.startswith("stacks/")][:_MOST_EVIDENCE_FILES]
    wanted = message.strip().partition("\n")[0][:160]
    ends = (end for log in logs if (end := _Ending.of(log)) is not None)
    first = None
    for end in ends:
        first = end if first is None else first
        place = next((place for place, text in enumerate(end.texts) if wanted and wanted in text), None)
        if place is not None:
            return end.told(max(0, place - before), place + 1)
    return [] if first is None else first.told(max(0, len(first.texts) - before - 1), len(first.texts))


@dataclass(frozen=True)
class _Ending:
    """The last lines of a log; nothing before them was read."""

    log: LogFile
    begin: int
    texts: tuple[str, ...]

    @classmethod
    def of(cls, log: LogFile) -> _Ending | None:
        """None of a log that cannot be read."""
        try:
            with log.open() as file:
                size = file.seek(0, os.SEEK_END)
                begin = _back(file, size, _MOST_EVIDENCE_LINES)
                texts = tuple(line.text for line in _placed(file, begin, _MOST_EVIDENCE_LINES, size))
        except OSError:
            return None
        return cls(log, begin, texts)

    def told(self, first: int, after: int) -> list[str]:
        """Some of the lines, with where they stand; empty ones are left out."""
        name, number = self.log.name, self._number()
        places = [place for place in range(first, after) if self.texts[place].strip()]
        return [
            f"{name}  {self.texts[place]}" if number is None else f"{name}:{number + place}  {self.texts[place]}"
            for place in places
        ]

    def _number(self) -> int | None:
        """That of its first line; None where it is not known."""
        if self.begin > MOST_EVIDENCE_BYTES:
            return None
        try:
            with self.log.open() as file:
                return _LINES.number_at(self.log.path, file, self.begin)
        except OSError:
            return None
