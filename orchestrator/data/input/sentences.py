"""Text into sentences, by rules: no model, no download, the same on every machine.

A sentence ends at a blank line, at `.`, `!`, `?` or `…` before a blank and something that can begin a sentence, and at
the full stops of scripts that write no blank. Quotes and brackets that close behind the stop belong to the sentence.

What rules cannot know: whether a sentence ends in an abbreviation or an initial ("in the U.S. He left" stays one
sentence), titles and headings without a stop (they end at a blank line only), and scripts without stops (Thai).
"""

# ruff: noqa: RUF001 - the stops and quotes of many scripts look alike
from __future__ import annotations

import re

_CLOSING = "\"'”’»›)\\]}」』）】》"
_OPENING = "\"'“‘„«‹([{¿¡「『（【《*_-"
_END = re.compile(
    rf"(?P<stop>(?<![.!?…])[.!?…]++)[{_CLOSING}]*+(?=\s)"  # a run of stops counts once
    rf"|[。！？｡।॥؟۔]++[{_CLOSING}]*+"
    r"|\n[^\S\n]*+\n"
)
_LAST_WORD = re.compile(rf"[^\s{_CLOSING}{re.escape(_OPENING)}]+\Z")
_NEXT = re.compile(rf"\s*+[{re.escape(_OPENING)}]*+\s*+")
_LONGEST_WORD = 32

SENTENCE_RULES = 1
"""Raised when the rules change, so that nothing is made half by old and half by new ones."""
_ABBREVIATIONS = (
    # Titles, and what names or numbers follow: they hardly ever end a sentence. Lower case, without the last stop.
    "mr mrs ms mx dr prof rev fr sr jr st gen col maj capt lt sgt cmdr adm gov sen rep pres supt msgr bros messrs mt "
    # References.
    "fig figs eq eqs sec secs chap vol vols pp pg eds nos op cit ca cf viz al resp approx "
    # Others that go on in the same sentence.
    "vs etc dept univ assn inc ltd corp co bldg ave blvd tel "
    "jan feb mar apr jun jul aug sep sept oct nov dec "
    # German, French, Spanish, Italian, Portuguese.
    "bzw usw ggf evtl hr nr abb kap bspw sog vgl inkl zzgl bd mme mlle éd sra srta sres ud uds dña pág sig dott avv"
)
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Words whose full stop does not end a sentence."""


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the blanks around them; nothing else is lost. Empty for blank text."""
    sentences = []
    start = 0
    for match in _END.finditer(text):
        if match["stop"] is not None and not _ends_sentence(text, start, match):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the stop that was found ends the sentence that began at `start`."""
    following = _NEXT.match(text, match.end())
    assert following is not None, "the pattern matches nothing as well"
    if text[following.end() : following.end() + 1].islower():
        return False
    return match["stop"] != "." or not _is_abbreviation(text, start, match.start())


def _is_abbreviation(text: str, start: int, stop: int) -> bool:
    """Whether the word before a full stop is one that goes on: an abbreviation, an initial, or the number of a list."""
    found = _LAST_WORD.search(text[max(start, stop - _LONGEST_WORD) : stop])
    if found is None:
        return False
    word = found.group()
    if word.isdecimal():
        return not text[start : stop - len(word)].strip()
    is_dotted = "." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))
    return is_dotted or (len(word) == 1 and word.isupper()) or word.lower() in ABBREVIATIONS
