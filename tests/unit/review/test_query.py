"""The filter of the runs: what it means, what it says to nonsense, and that no text breaks it."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.review.summaries import summary

from orchestrator.review.query import QueryError, quoted, select

LOSSES = {"train/loss": 2.5, "validation/loss": 2.75, "throughput/mfu": 0.42}
RUNS = [
    summary("gpt", "aaaaaaaa", state="running", user="ann", values=LOSSES, eta=7200.0, iteration=900, world_size=8,
            spec={"optimizer.lr": "0.0003", "model.num_layers": "24", "runtime.deterministic": "true"},
            created=time.time() - 3600),
    summary("gpt", "bbbbbbbb", state="failed", cause="nan", user="bob", message="the loss stayed NaN",
            values={"train/loss": math.nan}, spec={"optimizer.lr": "1e-05", "model.num_layers": "12", "old.field": "x"},
            created=time.time() - 3 * 86400),
    summary("bert base", "cccccccc", state="completed", sweep="learning rates", cell="lr=1e-3,gbs=4", launches=2,
            values={"train/loss": 1.5}, spec={"optimizer.lr": "0.001", "parallelism.tensor_model_parallel_size": "2"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "abc"),
        ("  ", "abc"),
        ("GPT", "ab"),
        ('"bert base"', "c"),
        ("aaaa", "a"),
        ("stayed", "b"),
        ("state:failed", "b"),
        ("state:FAIL", "b"),
        ("state!=failed", "ac"),
        ("-state:failed", "ac"),
        ("cause:nan", "b"),
        ("user:ann", "a"),
        ("-user:ann -user:bob", "c"),
        ('sweep:"learning rates"', "c"),
        ('sweep="learning"', ""),
        ("cell:gbs=4", "c"),
        ("loss<3", "ac"),
        ("loss=nan", "b"),
        ("-loss<2", "ab"),
        ("validation<=2.75", "a"),
        ("val>1", "a"),
        ("train/loss>2", "a"),
        ("mfu>40%", "a"),
        ("optimizer.lr>1e-4", "ac"),
        ("lr=3e-4", "a"),
        ("lr:0.0003", "a"),
        ("model.num_layers=24", "a"),
        ("layers!=24", "bc"),
        ("tp=2", "c"),
        ("deterministic=TRUE", "a"),
        ("old.field=x", "b"),
        ("age<2d", "a"),
        *(
            (f"age<{time}", "a")
            for time in ("2days", "48 hours", "1d23h59min", '"1 day 12 hours"', "0.2weeks", "2880m")
        ),
        ("age < 2 days gpt", "a"),
        ("created > 2 days gpt", "a"),
        ('created < "2 days ago"', "b"),
        ('cause=""', "ac"),
        ("cause!=nan", "ac"),
        ("age>2d", "b"),
        ("eta>=2h", "a"),
        ("eta >= 2 h", "a"),
        ("(age < 2 d) gpt", "a"),
        ("age<2d b", ""),
        ("age > 2 d or loss<2", "bc"),
        ("step>100 gpus=8", "a"),
        ("processes=8", "a"),
        ("launches>1", "c"),
        ("gpt loss<3 -user:bob", "a"),
    ],
)
def test_what_it_finds(query: str, found: str) -> None:
    assert "".join(run.run.run_id[0] for run in select(RUNS, query)) == found


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("optimiser.lr>1", "there is no field optimiser.lr: did you mean optimizer.lr?"),
        ("stat:failed", "there is no field stat: did you mean state?"),
        ("zzzzqqq=1", "there is no field zzzzqqq: to look for the text itself, put it in quotes"),
        ("loss<three", "loss expects a number, not three"),
        ("age<2parsecs", "age expects a time like 30min, 36h, 7 days or 1w2d, not 2parsecs"),
        ("state>3", "state is text: write state:3"),
        ("state=fail", "there is no state fail: did you mean failed?"),
        ("state:", "state:: a value is missing, as in state:failed"),
        ("a " * 51, "a filter has at most 50 parts, not 51"),
        ('"never closed', 'a quote is not closed: write "some words"'),
        ("lr>abc", "lr expects a number, not abc"),
    ],
)
def test_what_it_says_to_nonsense(query: str, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        select(RUNS, query)
    assert str(caught.value) == said


@given(query=st.text(max_size=80) | st.from_regex(r"-?[a-z.]{1,12}(<=|>=|!=|[:=<>])[^\s]{0,9}( |$)"))
def test_any_text_finds_runs_or_is_refused_in_one_line(query: str) -> None:
    found, said = RUNS, "found"
    try:
        found = select(RUNS, query)
    except QueryError as error:
        said = str(error)
    assert [run for run in RUNS if run in found] == found
    assert len(said.splitlines()) == 1
    assert len(said) < 300


parts = st.sampled_from(["gpt", "state:failed", "loss<2", "loss>=2", "lr=1e-3", "user=ann", "age>1d", '"bert base"'])


@given(part=parts)
def test_a_part_and_its_opposite_divide_the_runs(part: str) -> None:
    found, others = select(RUNS, part), select(RUNS, f"-{part}")
    assert sorted(run.key for run in (*found, *others)) == sorted(run.key for run in RUNS)


@given(several=st.lists(parts, max_size=4))
def test_all_parts_must_hold(several: list[str]) -> None:
    each = [{run.key for run in select(RUNS, part)} for part in several]
    assert {run.key for run in select(RUNS, " ".join(several))} == {run.key for run in RUNS}.intersection(*each)


@given(name=st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_quoted_name_is_found(name: str) -> None:
    run = summary(sweep=name)
    assert select([run, summary(sweep=f"{name}?"), *RUNS], f"sweep={quoted(name)}") == [run]


@given(loss=st.floats(allow_nan=False), bound=st.floats(-1e300, 1e300))
def test_numbers_are_compared_as_numbers(loss: float, bound: float) -> None:
    run = summary(values={"train/loss": loss})
    assert (select([run], f"loss<{bound!r}") == [run]) == (loss < bound)
    assert (select([run], f"loss>={bound!r}") == [run]) == (loss >= bound)
