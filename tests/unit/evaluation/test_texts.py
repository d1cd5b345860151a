"""WikiText's detokenising and the windows of a text."""

from __future__ import annotations

import importlib.util
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evaluation.texts import detokenized, windows, words_of_wikitext

SENTENCE = ' = Valkyria Chronicles III = \n \n The @-@ game \'s 1 @,@ 000 " copies " ( sold ) ; it was 3 @.@ 5 ° C . \n'


def test_wikitext_reads_as_it_was_written() -> None:
    expected = '= Valkyria Chronicles III =\n\nThe-game\'s 1,000 "copies" (sold); it was 3.5°C.\n'
    assert detokenized(SENTENCE).lstrip(" ") == expected


PIECES = st.sampled_from(
    [*" .,:;!?'\"()[]{}=°Ns\n", " @-@ ", " @,@ ", " @.@ ", " = = ", "= = = =", " 's", "s '", "word", "1", " \n ", " N "]
)


@given(st.lists(PIECES, max_size=40).map("".join))
def test_wikitext_is_detokenised_as_others_do(text: str) -> None:
    """lm-eval has the same rules; it leaves out none, and the one that is left out here needs a slash."""
    theirs = _their_detokenizer()
    assert detokenized(text) == theirs({"page": text})


@cache
def _their_detokenizer() -> Any:
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        pytest.skip("lm-eval is an extra, and is not installed")
    path = Path(found.origin).parent / "tasks" / "wikitext" / "preprocess_wikitext.py"
    return runpy.run_path(str(path))["wikitext_detokenizer"]


def test_a_line_end_is_a_word_of_wikitext() -> None:
    assert words_of_wikitext(" = A title = \n \n Two words . \n") == 9


@given(st.integers(2, 400), st.integers(1, 60), st.data())
def test_each_token_is_scored_once_with_as_much_before_it_as_there_is(tokens: int, length: int, data: Any) -> None:
    stride = data.draw(st.integers(1, length))
    found = windows(tokens, length, stride)
    scored = [place for window in found for place in range(window.first, window.stop)]
    assert scored == list(range(1, tokens))
    for window in found:
        assert 2 <= window.stop - window.start <= length + 1
        assert window.first < window.stop
        assert window.first - window.start >= min(length - stride + 1, window.first)


def test_windows_are_those_of_megatron_lm() -> None:
    """By hand from tasks/zeroshot_gpt: 11 tokens, windows of 4, each 2 further."""
    found = [(window.start, window.stop, window.first) for window in windows(11, 4, 2)]
    assert found == [(0, 5, 1), (2, 7, 5), (4, 9, 7), (6, 11, 9)]
