"""Batches, and what is kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evaluation.base import ScoredTokens
from orchestrator.evaluation.journal import Journal
from orchestrator.evaluation.rank_calls import score
from orchestrator.evaluation.task_batches import BatchedNetwork, batches

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


@given(LENGTHS, st.integers(1, 200), st.data())
def test_what_is_left_is_computed_in_the_batches_it_would_have_been(lengths: list[int], most: int, data: Any) -> None:
    whole = list(batches(lengths, {}, most))
    assert sorted(place for batch in whole for place in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= most for batch in whole)
    done = data.draw(st.integers(0, len(whole)))
    known = {place: None for batch in whole[:done] for place in batch}
    assert list(batches(lengths, known, most)) == whole[done:]


def test_a_score_is_of_what_is_asked_for() -> None:
    """The sum from the first scored token on; greedy when each of these was the likeliest, whatever was before."""

    class Network:
        def log_probabilities(self, tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
            assert [len(ids) for ids in tokens] == [4, 3]
            likeliest = [[False, True, True], [False, True, False]]
            return torch.tensor([[-1.0, -2.0, -4.0], [-8.0, -16.0, -99.0]]), torch.tensor(likeliest)

    lists = [[5, 6, 7, 8], [5, 6, 7]]
    network: Any = Network()
    assert score(network, lists, [2, 1]) == [(-6.0, True), (-24.0, False)]
    assert score(network, lists, [1, 2]) == [(-7.0, False), (-16.0, True)]


class Echo:
    """In place of the ranks: a list's score is its length."""

    def __init__(self, dies_at: int = 99) -> None:
        self.calls: list[list[int]] = []
        self.dies_at = dies_at

    def call(self, name: str, tokens: list[list[int]], firsts: list[int]) -> list[Any]:
        if len(self.calls) == self.dies_at:
            raise KeyboardInterrupt
        self.calls.append([len(ids) for ids in tokens])
        return [(float(len(ids)), True) for ids in tokens]


def test_a_journal_is_gone_on_with(tmp_path: Path) -> None:
    sequences = [ScoredTokens([1] * length, 1) for length in (3, 9, 5, 9, 2)]
    told: list[tuple[int, int]] = []

    def scores(echo: Echo) -> list[float]:
        journal = Journal(tmp_path / "folder" / "part.jsonl")
        working = BatchedNetwork(echo, journal, 16, lambda *done: told.append(done))  # type: ignore[arg-type]  # a stand-in
        return [score.logprob for score in working.scores("part", sequences)]

    first, second, third = Echo(dies_at=1), Echo(), Echo()
    with pytest.raises(KeyboardInterrupt):
        scores(first)
    with open(tmp_path / "folder" / "part.jsonl", "a") as file:
        file.write('{"part": "part", "places": [2, 4], "values": [[7.0, true]]}\n["of another kind"]\n')
        file.write('{"part": "part", "places": [2], "val')  # as a crash leaves it
    assert scores(second) == [3.0, 9.0, 5.0, 9.0, 2.0]
    assert first.calls + second.calls == [[9, 9], [5, 3, 2]]
    assert scores(third) == [3.0, 9.0, 5.0, 9.0, 2.0]
    assert third.calls == []
    assert told[-1] == (5, 5)
    other = Journal(tmp_path / "folder" / "part.jsonl")
    assert other.known("another part") == {}
    other.remove()
    assert list((tmp_path / "folder").iterdir()) == []
