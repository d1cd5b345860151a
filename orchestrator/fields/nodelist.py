"""SLURM's lists of nodes: `gpu[001-004,07],login1` and the names in it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

MAX_NODES = 100_000
"""More than any cluster has: a longer range is a slip."""

_ELEMENT = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,18})", re.ASCII | re.DOTALL)


def expand_nodelist(text: str) -> list[str]:
    """The names in a list of nodes, in its order; [] for what SLURM writes when there are none.

    Raises ValueError for text that is no list of nodes.
    """
    text = text.strip()
    if text in ("", "(null)", "None assigned", "None", "N/A"):
        return []
    names: list[str] = []
    for element in _elements(text):
        pieces = [[plain] if plain else _numbers(inside, text) for inside, plain in _PIECE.findall(element)]
        for name in itertools.product(*pieces):
            names.append("".join(name))
            if len(names) > MAX_NODES:
                raise ValueError(f"{_shown(text)} names more than {MAX_NODES:,} nodes")
    return names


def _elements(text: str) -> Iterator[str]:
    position = 0
    while True:
        match = _ELEMENT.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            raise ValueError(f"{_shown(text)} is not a list of nodes")
        yield match.group()
        if match.end() == len(text):
            return
        position = match.end() + 1


def _numbers(inside: str, text: str) -> list[str]:
    """`001-003,07` -> 001, 002, 003, 07."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{_shown(text)} is not a list of nodes: [{_shown(inside)}]")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise ValueError(f"{_shown(text)} is not a list of nodes: {part} runs backwards")
        if int(last) - int(first) >= MAX_NODES:
            raise ValueError(f"{_shown(text)} names more than {MAX_NODES:,} nodes")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def compact_nodelist(names: Iterable[str]) -> str:
    """Names as a short list, each once: `gpu[001-004],login1`. `expand_nodelist` reads it back."""
    alone: list[str] = []
    numbered: dict[str, set[str]] = {}
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            alone.append(name)
        else:
            numbered.setdefault(match.group(1), set()).add(match.group(2))
    elements = alone + [_compact(prefix, numbers) for prefix, numbers in numbered.items()]
    return ",".join(sorted(elements))


def _compact(prefix: str, numbers: set[str]) -> str:
    ranges: list[list[str]] = []
    for number in sorted(numbers, key=lambda digits: (len(digits), int(digits))):
        if ranges and number == str(int(ranges[-1][-1]) + 1).zfill(len(ranges[-1][0])):
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    parts = ["-".join(part) for part in ranges]
    return f"{prefix}{parts[0]}" if len(numbers) == 1 else f"{prefix}[{','.join(parts)}]"


def _shown(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
