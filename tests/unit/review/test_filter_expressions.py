"""Expressions of the filter: what they mean beside an evaluation of their own, and that no text harms."""

from __future__ import annotations

import contextlib
import math
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.review.summaries import summary

from orchestrator.review.filters.run_fields import field_of, in_order
from orchestrator.review.query import QueryError, read_query, select
from orchestrator.review.run_summary import RunSummary
from orchestrator.run_directory.events.labels import Labels

Expected = Callable[[RunSummary], bool]
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "==": operator.eq}


@dataclass(frozen=True)
class Written:
    """A part of a filter, and when it holds. `joins`: the word that it has outside of parentheses."""

    text: str
    holds: Expected
    joins: str = ""


@st.composite
def runs(draw: st.DrawFn) -> RunSummary:
    losses = {"train/loss": draw(st.sampled_from([1.0, 2.5, 3.0]))} if draw(st.booleans()) else {}
    return summary(
        draw(st.sampled_from(["gpt", "bert"])),
        f"{draw(st.integers(0, 0xFFFFFFFF)):08x}",
        state=draw(st.sampled_from(["failed", "completed", "lost"])),
        user=draw(st.sampled_from(["ann", "bob", None])),
        values=losses,
        spec={"optimizer.lr": draw(st.sampled_from(["0.001", "1e-05", "null"]))},
        tags=tuple(draw(st.sets(st.sampled_from(["old", "best"])))),
    )


def loss_part(sign: str, bound: float, space: str) -> Written:
    def holds(run: RunSummary) -> bool:
        loss = run.values.get("train/loss")
        return loss is not None and ORDERS[sign](loss, bound)

    return Written(f"loss{space}{sign}{space}{bound}", holds)


def rate_part(sign: str, bound: float, name: str) -> Written:
    def holds(run: RunSummary) -> bool:
        text = run.spec["optimizer.lr"]
        return text != "null" and ORDERS[sign](float(text), bound)

    return Written(f"{name} {sign} {bound!r}", holds)


def states_part(states: list[str], negated: bool) -> Written:
    text = f"state {'not ' if negated else ''}in ({', '.join(states)})"
    return Written(text, lambda run: (run.state in states) != negated)


leaves = st.one_of(
    st.builds(loss_part, st.sampled_from(sorted(ORDERS)), st.sampled_from([1.0, 2.0, 2.5]), st.sampled_from(["", " "])),
    st.builds(rate_part, st.sampled_from(sorted(ORDERS)), st.just(1e-3), st.sampled_from(["lr", "optimizer.lr"])),
    st.builds(states_part, st.lists(st.sampled_from(["failed", "lost"]), min_size=1, max_size=3), st.booleans()),
    st.sampled_from(
        [
            Written("user:an", lambda run: run.user == "ann"),
            Written('user ~ "OB"', lambda run: run.user == "bob"),
            Written("user=ann", lambda run: run.user == "ann"),
            Written("user!=ann", lambda run: run.user != "ann"),
            Written("tag=best", lambda run: "best" in run.tags),
            Written("tag in (best, old)", lambda run: bool(run.tags)),
            Written("bert", lambda run: run.run.name == "bert"),
        ]
    ),
)


def enclosed(part: Written) -> str:
    return f"({part.text})" if part.joins else part.text


def negated(part: Written, word: str) -> Written:
    return Written(f"{word}{enclosed(part)}", lambda run: not part.holds(run), "not")


def joined(left: Written, right: Written, word: str) -> Written:
    if word == " or ":
        return Written(f"{left.text} or {right.text}", lambda run: left.holds(run) or right.holds(run), "or")
    texts = [f"({part.text})" if part.joins == "or" else part.text for part in (left, right)]
    return Written(word.join(texts), lambda run: left.holds(run) and right.holds(run), "and")


expressions = st.recursive(
    leaves,
    lambda inner: (
        st.builds(negated, inner, st.sampled_from(["not ", "NOT ", "-"]))
        | st.builds(joined, inner, inner, st.sampled_from([" or ", " and ", " AND ", "  "]))
    ),
    max_leaves=12,
)


@given(part=expressions, among=st.lists(runs(), max_size=6))
def test_it_finds_what_the_expression_means(part: Written, among: list[RunSummary]) -> None:
    assert select(among, part.text) == [run for run in among if part.holds(run)], part.text


@given(part=expressions, among=st.lists(runs(), min_size=1, max_size=3))
def test_what_it_reads_is_told(part: Written, among: list[RunSummary]) -> None:
    assert read_query(part.text, among).keys == {
        key
        for key, names in {"state": ["state"], "user": ["user"], "tag": ["tag"], "train/loss": ["loss"]}.items()
        if any(name in part.text for name in names)
    } | ({"optimizer.lr"} if "lr" in part.text else set())


PIECES = ["(", ")", "[", "]", '"', "-", "not", "and", "or", "in", ",", "<", "=", "!=", "~", ":", " ", "loss", "state"]


@given(text=st.lists(st.sampled_from([*PIECES, "3", "2d", "\n", "é", "\0", "name"]) | st.text(max_size=4)).map("".join))
def test_junk_is_an_expression_or_is_refused_with_the_place(text: str) -> None:
    among, refused = [summary(values={"train/loss": 2.0})], None
    found = among
    try:
        found = select(among, text)
    except QueryError as error:
        refused = error
    assert found in ([], among)
    if refused is not None:
        assert refused.place is None or 0 <= refused.place <= len(text)
        assert (len(str(refused).splitlines()), len(str(refused)) < 300) == (1, True)


@pytest.mark.parametrize(
    ("query", "place", "said"),
    [
        ("loss < 3 and (state:failed", 13, "a parenthesis is not closed"),
        ("loss < 3) or gpt", 8, "a parenthesis is closed that was not opened"),
        ("loss < 3 and", 12, "a part is missing at the end; to look for the word itself, put it in quotes"),
        ("loss < 3 and or gpt", 13, "a part is missing before or; to look for the word itself, put it in quotes"),
        ("gpt and losss < 3", 8, "there is no field losss: did you mean loss?"),
        ("gpt and optimizer.lrr > 1", 8, "there is no field optimizer.lrr: did you mean lr?"),
        ("state in (failed, lost", 9, "a list is not closed: write (failed, lost)"),
        ("gpt state:faild", 4, "there is no state faild: did you mean failed?"),
        ("not state in (failed, complete)", 4, "there is no state complete: did you mean completed?"),
        ("cause=nam", 0, "there is no cause nam: did you mean nan?"),
        ("archived:maybe", 0, "there is no archived maybe: there are true, false"),
        ("state in ()", 10, "a value is missing in a list like (failed, lost)"),
        ("age < soon", 0, "age expects a time like 30min, 36h, 7 days or 1w2d, not soon"),
        (
            "created > 2026-02-30",
            0,
            "created expects a date like 2026-11-01 or 2026-11-01T12:30, or an age like 30min, 36h, 7 days or 1w2d, "
            "not 2026-02-30",
        ),
        ("(" * 21 + "gpt" + ")" * 21, 20, "parentheses are nested more than 20 deep"),
        ('gpt "never closed', 4, 'a quote is not closed: write "some words"'),
    ],
)
def test_an_error_says_what_and_where(query: str, place: int, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        select([summary()], query)
    assert (str(caught.value), caught.value.place) == (said, place)


@pytest.mark.parametrize(
    "query",
    [
        *("(" * 2000, "not " * 500, "-" * 2000, "a" * 2000, "loss" + " " * 1990 + "<", "a or " * 400),
        *("x in (" + "a," * 990, "state not" + " " * 1980, '""' * 1000, "(a)" * 600, "a." * 1000 + "<3", "-(" * 1000),
        *("é" * 2000, "a" * 100_000, "lr in (" + "3," * 20 + "3)"),
    ],
)
def test_no_text_takes_long(query: str) -> None:
    """Nor nests deeply: a filter comes from anybody who sees the dashboard."""
    begun = time.process_time()
    for _ in range(10):
        with contextlib.suppress(QueryError):
            select([summary()], query)
    assert time.process_time() - begun < 2.0


def test_a_day_is_all_of_its_hours() -> None:
    noon = summary(created=datetime(2026, 11, 1, 12).timestamp())
    held = [
        "=2026-11-01",
        ">=2026-11-01",
        "<=2026-11-01",
        ">2026-10-31",
        "<2026-11-02",
        "=2026-11-01T12:00",
        "!=2026-11-02",
    ]
    for sign in held:
        assert select([noon], f"created{sign}") == [noon], sign
    for sign in (">2026-11-01", "<2026-11-01", "!=2026-11-01", "=2026-11-02", '>"2026-11-01 12:00"'):
        assert select([noon], f"created {sign}") == [], sign
    assert select([summary(created=time.time() - 3600)], "created>=2h") != []
    assert select([summary(created=None)], "created!=2026-11-01") == []


def test_labels_are_found_and_archived_runs_only_when_asked_for() -> None:
    old = summary(
        "gpt", "aaaaaaaa", labels=Labels(name="baseline", former_names=("gpt",), note="too hot", archived=True)
    )
    plain = summary("gpt", "bbbbbbbb", tags=("team:nlp",))
    among = [old, plain]
    assert select(among, "gpt") == [plain]
    assert select(among, "archived=true") == [old]
    assert select(among, "archived in (true, false) name=gpt") == among
    assert select(among, "name=baseline archived=true") == [old]
    assert select(among, "tag:nlp") == select(among, "tag=team:nlp") == [plain]


def test_metrics_of_ones_own_are_fields() -> None:
    among = [summary(values={"train/accuracy": 0.5, "eval/f1": 0.25, "train/f1": 0.75}), summary()]
    assert select(among, "accuracy > 0.4") == select(among, "train/accuracy=0.5") == among[:1]
    with pytest.raises(QueryError, match="f1 could be eval/f1 or train/f1"):
        select(among, "f1 > 0")


def test_the_order_of_a_field() -> None:
    rates = ["1e-05", "0.001", "9e-4"]
    among = [summary(run_id=f"{n:08x}", spec={"optimizer.lr": rate}) for n, rate in enumerate(rates)] + [
        summary("none")
    ]
    rising = in_order(among, field_of("lr", among), falling=False)
    assert [run.spec.get("optimizer.lr") for run in rising] == ["1e-05", "9e-4", "0.001", None]
    texts = [summary(spec={"optimizer.lr": text}) for text in ("b", "a", "3")]
    falling = in_order(texts, field_of("lr", texts), falling=True)
    assert [run.spec["optimizer.lr"] for run in falling] == ["b", "a", "3"]
    losses = [summary(values={"train/loss": loss}) for loss in (math.nan, 2.0, 1.0)]
    assert [run.values["train/loss"] for run in in_order(losses, field_of("loss", losses), falling=False)][:2] == [
        1.0,
        2.0,
    ]
