"""The shorthand of values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused

from orchestrator.fields.values import environment_references, parse_count, parse_duration, resolve_environment


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("15m", 900), ("4h", 14400), ("1d12h", 129600), ("1h1m1s", 3661)]
)
def test_duration(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "4 hours", "1.5h", "h", "3m2h", "-1s", "²", "9" * 100])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1000", 1000), ("250k", 250_000), ("1.5B", 1_500_000_000), ("2T", 2 * 10**12), ("1,000", 1000), ("0.5 k", 500)],
)
def test_count(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "1.5", "1.2345k", "k", "-1", "1e3x", "²", "9" * 100])
def test_not_a_count(text: str) -> None:
    with pytest.raises(ValueError, match=r"a count is|is not a whole number"):
        parse_count(text)


@given(st.integers(min_value=0, max_value=10**30))
def test_every_integer_is_a_count(number: int) -> None:
    assert parse_count(str(number)) == number


def test_references_are_resolved_where_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    assert environment_references("a ${env:SECRET} and ${env:OTHER}") == ["SECRET", "OTHER"]
    assert resolve_environment("a-${env:SECRET}-b") == "a-s3cret-b"
    monkeypatch.delenv("SECRET")
    with refused("variable_not_set", "SECRET"):
        resolve_environment("${env:SECRET}")
