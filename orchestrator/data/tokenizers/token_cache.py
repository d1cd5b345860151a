"""Tokenizing word by word: the same ids as the library's, several times faster.

Most tokenizers first cut text into words and then turn each word into ids by itself. Words repeat, so nearly all of
them are found in a table of words met before, as bytes ready to be written; the others go through the library.

Text is cut here by Python's `re`, which knows the patterns' classes of letters and numbers for ASCII only. A stretch
with other characters is taken whole, up to a place where the pattern surely ends a word: it then holds several words,
and the library cuts it. That is exact because no pattern here looks behind itself or past such a place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_BLANK = r"\t\n\x0b\x0c\r "
_SIGN = r"!-/:-@\[-`{-~\x00-\x08\x0e-\x1f\x7f"  # neither blank nor letter nor digit
_ASCII_NEXT = r"(?![^\x00-\x7f])"
_OTHER_BLANK = re.compile(r"[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")

MOST_WORDS = 1 << 18
_LONGEST_WORD = 64


@dataclass(frozen=True)
class WordSplit:
    """How text is cut into words. Text in which `not_here` is found is left to the library whole."""

    words: re.Pattern[str]
    not_here: re.Pattern[str] | None = None


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives))


GPT2_CUT = WordSplit(
    _pattern(
        r"'(?:[stmd]|re|ve|ll)",
        rf" ?[A-Za-z]++{_ASCII_NEXT}",
        rf" ?[0-9]++{_ASCII_NEXT}",
        rf" ?[{_SIGN}]++{_ASCII_NEXT}",
        rf"[{_BLANK}]+(?![^{_BLANK}])",
        rf" ?[^{_BLANK}]+",  # holds a character that is not ASCII: every other word was taken above
        rf"[{_BLANK}]+",
    ),
    _OTHER_BLANK,
)
"""GPT-2's pattern (`encoder.py`, Radford et al., 2019). A word never has a blank after another character."""


def _tiktoken_cut(digits: str) -> WordSplit:
    return WordSplit(
        _pattern(
            r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])",
            rf"[{_SIGN}\t\x0b\x0c ]?[A-Za-z]++{_ASCII_NEXT}",
            rf"{digits}{_ASCII_NEXT}",
            rf"(?![{_SIGN}][A-Za-z]) ?[{_SIGN}]++{_ASCII_NEXT}[\r\n]*",
            rf"[{_BLANK}]*[\r\n]+",
            rf"[{_BLANK}]+(?![^{_BLANK}])",
            rf"[\t\x0b\x0c ]?[^{_BLANK}]+(?:[{_BLANK}]*[\r\n])?",  # not ASCII; with the line ends that may belong to it
            rf"[{_BLANK}]+",
        ),
        _OTHER_BLANK,
    )


_TIKTOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_CUTS = {
    _TIKTOKEN.replace("DIGITS", "{1,3}"): _tiktoken_cut("[0-9]{1,3}+"),
    _TIKTOKEN.replace("DIGITS", ""): _tiktoken_cut("[0-9]"),
}
"""Patterns of Llama 3 and of Qwen 2, as in their tokenizer.json. A word may end in line ends, not in other blanks."""

BERT_CUT = WordSplit(re.compile(r"[^ \t\n\r]+"))
"""BERT's words lie between blanks; which other characters are blanks, and what is one word, the library decides."""


class WordTable(dict[str, bytes]):
    """word -> its ids as bytes. A word that is met for the first time is encoded and kept."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        ids = self._encode(word)
        if len(word) <= _LONGEST_WORD:
            if len(self) >= MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids


class WordEncoder:
    """Text to ids as bytes, for one tokenizer. `encode` is the library's way, used for words not met before."""

    def __init__(self, cut: WordSplit, added_tokens: list[str], encode: Callable[[str], bytes]) -> None:
        self._cut = cut
        self._encode = encode
        self._table = WordTable(encode)
        added = "|".join(re.escape(token) for token in added_tokens)
        self._added = re.compile(added) if added else None

    def __call__(self, text: str) -> bytes:
        """The ids of a text, as bytes."""
        if self._added is not None and self._added.search(text):
            return self._encode(text)
        if self._cut.not_here is not None and not text.isascii() and self._cut.not_here.search(text):
            return self._encode(text)
        return b"".join(map(self._table.__getitem__, self._cut.words.findall(text)))


def word_encoder(description: str, encode: Callable[[str], bytes]) -> WordEncoder | None:
    """An encoder for a tokenizer given as the text of its tokenizer.json; None when its way of cutting is not known."""
    tokenizer: dict[str, Any] = json.loads(description)
    cut = _cut_of(tokenizer)
    if cut is None:
        return None
    return WordEncoder(cut, [token["content"] for token in tokenizer["added_tokens"]], encode)


def _cut_of(tokenizer: dict[str, Any]) -> WordSplit | None:
    model, normalizer, steps = tokenizer["model"], tokenizer["normalizer"], tokenizer["pre_tokenizer"] or {}
    if model["type"] == "WordPiece":
        plain = (normalizer or {}).get("type") == "BertNormalizer" and steps.get("type") == "BertPreTokenizer"
        return BERT_CUT if plain else None
    if model["type"] != "BPE" or model.get("dropout"):
        return None
    cut = _byte_level_cut(steps)
    if cut is None or normalizer is None:
        return cut
    # ASCII is composed already; for other text NFC is left to the library.
    return WordSplit(cut.words, _NOT_ASCII) if normalizer == {"type": "NFC"} else None


def _byte_level_cut(steps: dict[str, Any]) -> WordSplit | None:
    """The cut of a ByteLevel step, or of a Split by a known pattern and a ByteLevel step that cuts no further."""
    chain = steps.get("pretokenizers", []) if steps.get("type") == "Sequence" else [steps]
    if not chain or chain[-1].get("type") != "ByteLevel" or chain[-1].get("add_prefix_space", True):
        return None
    cuts_by_itself = chain[-1].get("use_regex", True)
    if len(chain) == 1:
        return GPT2_CUT if cuts_by_itself else None
    split = chain[0]
    isolated = split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
    if len(chain) != 2 or cuts_by_itself or not isolated:
        return None
    return SPLIT_CUTS.get(split["pattern"].get("Regex", ""))
