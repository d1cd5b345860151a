"""What a person may have meant: edit distance over the legal keys, and the names that other tools use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from orchestrator.fields.base import Section
from orchestrator.spec.messages.document import JOB_SPEC, Document
from orchestrator.spec.schema.foreign_names import NO_SUCH
from orchestrator.spec.schema.shape import leaf_paths, meant_by_name, sections

_LONG = 6
"""Letters of a name that is looked for among those of other tools with slips: shorter ones are near to many."""


def closest(word: str, candidates: Iterable[str], most: int = 2) -> list[str]:
    """The candidates that are a few slips away from a word, nearest first."""
    if len(word) > 80:
        return []
    plain = _plain(word)
    allowed = min(3, max(1, len(plain) // 3))
    scored = []
    for candidate in candidates:
        distance = edit_distance(plain, _plain(candidate), allowed)
        # A slip in each letter leaves nothing alike.
        if distance <= allowed and distance < max(len(plain), len(candidate)):
            scored.append((distance, candidate))
    scored.sort(key=lambda pair: pair[0])
    return [candidate for distance, candidate in scored if distance == scored[0][0]][:most]


def alike(word: str, candidates: Iterable[str], most: int = 2) -> list[str]:
    """The candidates that hold every part of a word of several parts, each a slip away at most: the shortest ones.

    `tensor_paralel_size` is `tensor_model_parallel_size` without a part.
    """
    parts = _plain(word[:80]).split("_")
    if len(parts) < 2 or len(word) > 80:
        return []
    found = [candidate for candidate in candidates if _holds(candidate.split("_"), parts)]
    found.sort(key=lambda candidate: candidate.count("_"))
    return [candidate for candidate in found if candidate.count("_") == found[0].count("_")][:most]


def _holds(there: list[str], parts: list[str]) -> bool:
    if not len(parts) <= len(there) <= len(parts) + 2:
        return False
    left = list(there)
    for part in parts:
        slips = 1 if len(part) >= 5 else 0
        same = next((other for other in left if edit_distance(part, other, slips) <= slips), None)
        if same is None:
            return False
        left.remove(same)
    return True


def edit_distance(one: str, other: str, limit: int) -> int:
    """Insertions, deletions, replacements and swaps of neighbours between two words; limit + 1 if there are more."""
    there, here = set(one), set(other)
    # Each letter that only one of them has takes a slip of its own.
    if max(abs(len(one) - len(other)), len(there - here), len(here - there)) > limit:
        return limit + 1
    before: list[int] = []
    previous = list(range(len(other) + 1))
    for row, left in enumerate(one, start=1):
        current = [row]
        for column, right in enumerate(other, start=1):
            best = min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (left != right))
            if row > 1 and column > 1 and left == other[column - 2] and one[row - 2] == right:
                best = min(best, before[column - 2] + 1)
            current.append(best)
        if min(current) > limit:
            return limit + 1
        before, previous = previous, current
    return previous[-1]


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_").lower()


def suggest(
    key: str, place: tuple[str, ...], legal: Iterable[str], document: Document[Any] = JOB_SPEC
) -> tuple[str | None, list[str]]:
    """For an unknown key at a place: (what to say, the dotted paths of fields that may have been meant)."""
    prefix = ".".join(place)
    plain = _plain(key)
    if key == "extends":
        return "`extends` stands at the top level of a file", []
    advice = NO_SUCH.get(f"{prefix}.{plain}") or (NO_SUCH.get(plain) if document is JOB_SPEC else None)
    if advice is not None:
        return advice, []
    foreign = document.foreign_names.get(plain)
    if foreign is not None:
        names = [_filled_in(name, place) for name in foreign.split(" | ")]
        return _say(*names), [re.split("[: ]", name)[0] for name in names]
    near = closest(key, legal)
    if near and _plain(near[0]) == plain:
        return _say_here(near, prefix)
    root: type[Section] = document.root
    elsewhere = _elsewhere(root)
    if plain in elsewhere:
        return _say(*elsewhere[plain]), elsewhere[plain]
    if near := near or alike(key, legal):
        return _say_here(near, prefix)
    if len(plain) >= _LONG and (misspelt := closest(key, document.foreign_names, most=1)):
        return suggest(misspelt[0], place, legal, document)
    paths = [path for name in closest(key, elsewhere) or alike(key, elsewhere) for path in elsewhere[name]]
    return (_say(*paths), paths) if paths else (None, [])


def _filled_in(name: str, place: tuple[str, ...]) -> str:
    """A path that holds NAME for a free key, with the keys of the place where it fits that."""
    *section, key = name.split(".")
    pairs = zip(section, place, strict=False)
    fits = len(section) == len(place) and all(part in (there, "NAME") for part, there in pairs)
    return ".".join((*place, key)) if fits else name


def _say_here(names: list[str], prefix: str) -> tuple[str, list[str]]:
    paths = [f"{prefix}.{name}" if prefix else name for name in names]
    return _say(*names), paths


def _say(*names: str) -> str:
    return f"did you mean {' or '.join(names)}?"


@cache
def _elsewhere(root: type[Section]) -> dict[str, list[str]]:
    """Every key of the schema and the dotted paths where it is legal."""
    found: dict[str, list[str]] = {}
    for path in leaf_paths(root):
        found.setdefault(path.rpartition(".")[2], []).append(path)
    for path_parts in sections(root):
        if path_parts:
            found.setdefault(path_parts[-1], []).append(".".join(path_parts))
    return {key: meant_by_name(paths) for key, paths in found.items()}
