"""From tokens to text, as they come."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.inference.__main__ import told
from orchestrator.inference.serving.protocol import completion_choice
from orchestrator.inference.texts import Continuation, IncrementalDetokenizer, TextDelta
from orchestrator.spec.generation import Generation
from orchestrator.spec.sections.data import TokenizerSpec

BYTES = load_tokenizer(TokenizerSpec(type="byte_level"))


def follow(tokens: list[int], *, prompt: str = "so: ", shows: bool = True, **options: object) -> list[TextDelta]:
    chosen = Generation.model_validate({"max_new_tokens": max(len(tokens), 1), **options})
    before = BYTES.encode(prompt)
    follower = IncrementalDetokenizer(0, before, chosen, [BYTES.eod], BYTES, shows, before)
    pieces = []
    for token in tokens:
        pieces.append(follower.add(token, -1.0))
        if pieces[-1].done is not None:
            break
    return pieces


@given(st.text(min_size=1, max_size=12), st.booleans())
def test_pieces_are_the_text(text: str, shows: bool) -> None:
    """No piece has half a character, and together they are all of it."""
    encoded = BYTES.encode(text.encode(errors="replace").decode())
    pieces = follow([*encoded, BYTES.eod], shows=shows, max_new_tokens=len(encoded) + 1)
    done = pieces[-1].done
    assert done is not None
    assert (done.text, done.tokens, done.finish) == (BYTES.decode(encoded), encoded, "end")
    assert "".join(piece.text for piece in pieces) == done.text


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=2))
def test_nothing_from_a_stop_string_on_is_shown(text: str, stops: list[str]) -> None:
    tokens = [*BYTES.encode(text), BYTES.eod]
    for shows in (True, False):
        pieces = follow(tokens, stop=tuple(stops), shows=shows)
        done = pieces[-1].done
        assert done is not None
        first_end = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=None)
        if first_end is None:
            assert (done.text, done.finish) == (text, "end")
        else:
            # The token that completed the first of them; the text ends before the one that begins first there.
            seen = text[:first_end]
            assert done.text == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
            assert (done.finish, len(done.tokens)) == ("stop", first_end)
        assert "".join(piece.text for piece in pieces) == done.text


def test_bytes_that_are_no_text_are_shown_at_the_end() -> None:
    pieces = follow([0xE2, 0x82])
    assert [piece.text for piece in pieces] == ["", "\N{REPLACEMENT CHARACTER}"]
    assert follow([BYTES.eod], max_new_tokens=5)[-1].done is not None
    kept = follow([65, BYTES.eod, 66], ignore_end=True)[-1].done
    assert kept is not None
    assert (kept.tokens, kept.text, kept.finish) == ([65, BYTES.eod, 66], "AB", "length")


def test_what_a_network_that_has_diverged_says_is_still_json() -> None:
    """JSON has no NaN, and no infinities."""
    measured = [math.nan, -math.inf, -1.5]
    written = Continuation([1], [5, 6, 7], "abc", "length", measured, score=math.nan)
    choice = completion_choice(0, "abc", written, BYTES)
    model: Any = SimpleNamespace(commit=SimpleNamespace(iteration=3))
    record = told(model, "x", written)
    assert choice["logprobs"]["token_logprobs"] == record["log_probabilities"] == [None, None, -1.5]
    assert record["score"] is None
    json.dumps([choice, record], allow_nan=False)
