"""Searching logs: a program of its own (`python -m orchestrator.review.logs.log_search`), so that neither a log of many
gigabytes nor an expression that never ends holds up the pages.

It takes a request as JSON on standard input, and writes a JSON object for each line that it finds, and one at its end.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.files.stored_files import open_stored
from orchestrator.review.logs.page_size import PageBudget
from orchestrator.review.logs.pages import (
    LINE_BYTES,
    LONGEST_LINE,
    PAGE_BYTES,
    Line,
    LogFile,
    on_screen,
    sent_text,
    shown,
)
from orchestrator.safe_path import module_command

MOST_FOUND = 200
_SECONDS = 6.0
SECONDS_OF_GRACE = 3.0
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SearchPattern:
    """What is looked for: a text, upper and lower case alike, or an expression."""

    text: str
    is_regex: bool = False

    def matcher(self) -> Callable[[str], object]:
        """Whether a line has it. Raises UserError for what is no expression."""
        if not self.is_regex:
            small = self.text.casefold()
            return lambda line: small in line.casefold()
        try:
            return re.compile(self.text, re.IGNORECASE).search
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(f"{self.text} is not a regular expression: {error}", code="malformed_pattern") from error


@dataclass(frozen=True)
class SearchPosition:
    """Where a search goes on: in which log, at which byte, and the number of the line that begins there."""

    log: str
    begin: int
    number: int


@dataclass(frozen=True)
class SearchResults:
    """Lines with the names of their logs. `rest`: where to go on, None at the end. `problem`: why it ended early."""

    lines: tuple[tuple[str, Line], ...]
    rest: SearchPosition | None
    problem: str | None = None


def search(
    logs: Sequence[LogFile], wanted: SearchPattern, start: SearchPosition | None = None, most: int = MOST_FOUND
) -> SearchResults:
    """The first lines of logs that have what is wanted, from `start` on, as many as a page has room for, and as far as
    it gets in some seconds.

    Raises UserError for what is no expression.
    """
    wanted.matcher()
    begin = next((place for place, log in enumerate(logs) if start is not None and log.name == start.log), 0)
    request = {
        "logs": [[log.name, str(log.path), str(log.run_dir)] for log in logs[begin:]],
        "text": wanted.text,
        "is_regex": wanted.is_regex,
        "begin": start.begin if start is not None else 0,
        "number": start.number if start is not None else 1,
        "most": most,
    }
    command = module_command("orchestrator.review.logs.log_search")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        try:
            said, _ = program.communicate(json.dumps(request).encode(), timeout=_SECONDS + SECONDS_OF_GRACE)
        except subprocess.TimeoutExpired:
            program.kill()
            said, _ = program.communicate()
    return _found(said)


def _found(said: bytes) -> SearchResults:
    records: list[dict[str, Any]] = [json.loads(line) for line in said.split(b"\n")[:-1]]
    lines = tuple((str(each["log"]), Line(int(each["line"]), str(each["text"]))) for each in records if "line" in each)
    ends = [record for record in records if "rest" in record]
    if not ends:
        return SearchResults(lines, None, "the search took too long for this expression and was ended")
    rest = ends[0]["rest"]
    return SearchResults(lines, SearchPosition(*rest) if rest is not None else None)


def _search_files(request: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> SearchPosition | None:
    """Search, and say what is found; where it goes on, None where nothing is left."""
    wanted = SearchPattern(request["text"], request["is_regex"])
    matches = wanted.matcher()
    deadline = time.monotonic() + _SECONDS
    left, room = int(request["most"]), PageBudget(PAGE_BYTES, at_least=1)
    begin, number = int(request["begin"]), int(request["number"])
    for name, path, run_dir in request["logs"]:
        for block in _blocks(Path(path), Path(run_dir), begin, number):
            if time.monotonic() > deadline:
                return SearchPosition(name, block.begin, block.number)
            for place in _hits(block, wanted, matches):
                text = shown(block.lines[place])
                if left == 0 or not room.takes(sent_text(name, text), LINE_BYTES):
                    return SearchPosition(name, block.begin + block.byte_of(place), block.number + place)
                left -= 1
                say({"log": name, "line": block.number + place, "text": text})
        begin, number = 0, 1
    return None


@dataclass(frozen=True)
class _Block:
    """About a megabyte of whole lines. `begin`: its first byte; `number`: that of its first line."""

    content: bytes
    begin: int
    number: int

    def byte_of(self, place: int) -> int:
        """Where one of its lines begins, from the block's first byte."""
        at = 0
        for _ in range(place):
            at = self.content.find(b"\n", at) + 1
        return at

    @cached_property
    def lines(self) -> list[bytes]:
        return self.content.split(b"\n")


def _blocks(path: Path, run_dir: Path, begin: int, number: int) -> Iterator[_Block]:
    """A log in blocks; none of one that is gone. A line that is longer than two of them is found in parts."""
    try:
        with open_stored(path, run_dir) as file:
            file.seek(begin)
            while content := file.read(_BLOCK_BYTES):
                content += file.readline(_BLOCK_BYTES)
                yield _Block(content, begin, number)
                begin, number = begin + len(content), number + content.count(b"\n")
    except OSError:
        return


def _hits(block: _Block, wanted: SearchPattern, matches: Callable[[str], object]) -> Iterator[int]:
    """The places of the lines that have what is wanted, in that part of them that is shown."""
    text = on_screen(block.content)
    if not wanted.is_regex and wanted.text.casefold() not in text.casefold():
        return  # most blocks, and no loop over their lines
    for place, line in enumerate(text.split("\n")):
        if matches(line[:LONGEST_LINE]):
            yield place


def main() -> int:
    """The program."""

    def say(record: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()

    rest = _search_files(json.load(sys.stdin), say)
    say({"rest": [rest.log, rest.begin, rest.number] if rest is not None else None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
