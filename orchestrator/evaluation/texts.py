"""Running text as perplexity is measured on it: WikiText's marks taken out, and windows over its tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

_REPLACED = (
    # Contractions, and the separators inside numbers and words.
    *(("s '", "s'"), (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
_ENCLOSED = tuple(
    (re.compile(rf"{opening}\s*([^{closing}]*?)\s*{closing}"), inside)
    for opening, closing, inside in (
        (r"\(", r"\)", r"(\1)"),
        (r"\[", r"\]", r"[\1]"),
        ("{", "}", r"{\1}"),
        ('"', '"', r'"\1"'),
        ("'", "'", r"'\1'"),
    )
)
_REPLACED_LAST = (
    *(("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \N{DEGREE SIGN} ", "\N{DEGREE SIGN}")),
    *((" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")),
)


def detokenized(text: str) -> str:
    """WikiText as it was before it was cut into words, as Megatron-LM's detokenizer has it (tasks/zeroshot_gpt).

    One of its rules, which changes text between slashes only and is a slip, is left out.
    """
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for pattern, inside in _ENCLOSED:
        text = pattern.sub(inside, text)
    for old, new in _REPLACED_LAST:
        text = text.replace(old, new)
    return text


def words_of_wikitext(text: str) -> int:
    """How many words it was cut into: WikiText has one space between words, and a line's end is a word."""
    return len(text.strip().split(" "))


@dataclass(frozen=True)
class Window:
    """The tokens `start` to `stop` of a text, of which those from `first` on are scored."""

    start: int
    stop: int
    first: int


def windows(tokens: int, length: int, stride: int) -> list[Window]:
    """Windows that score every token but the first once, each with `length` tokens before its last one.

    Each begins `stride` tokens after the one before and scores its last `stride` ones, the first window all. With
    `stride` = `length` none overlap, and a window's first token has nothing but itself to go by.
    """
    targets = tokens - 1
    last = max(0, -(-(targets - length) // stride))
    found = []
    for number in range(last + 1):
        start = number * stride
        first = 1 if number == 0 else start + length - stride + 1
        found.append(Window(start, min(start + length, targets) + 1, first))
    return found
