"""Computing what a task asks for, a batch at a time, and keeping it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.evaluation.base import Answer, Examples, Prompt, Score, ScoredTokens
from orchestrator.evaluation.journal import Journal
from orchestrator.evaluation.rank_calls import RankCalls

Progress = Callable[[int, int], None]
"""Hears how many are done, of how many."""


class BatchedNetwork:
    """The network for one task. `batch_tokens`: tokens of a batch with its padding; what is longer is one."""

    def __init__(self, rank_calls: RankCalls, journal: Journal, batch_tokens: int, progress: Progress) -> None:
        self._rank_calls, self._journal, self._batch_tokens = rank_calls, journal, batch_tokens
        self._progress = progress

    def scores(self, part: str, sequences: Sequence[ScoredTokens]) -> list[Score]:
        """A score of each sequence."""

        def batch(places: Sequence[int]) -> list[Any]:
            chosen = [sequences[place] for place in places]
            return self._rank_calls.call("score", [one.tokens for one in chosen], [one.first for one in chosen])

        # The last token is scored and not read.
        lengths = [len(one.tokens) - 1 for one in sequences]
        return [Score(float(logprob), bool(greedy)) for logprob, greedy in self._through(part, lengths, batch)]

    def answers(self, part: str, examples: Examples) -> list[Answer]:
        """The answer to each example."""

        def batch(places: Sequence[int]) -> list[Any]:
            return self._rank_calls.call("answer", [examples[place] for place in places])

        lengths = [examples.tokens_each] * len(examples)
        return [Answer(float(loss), bool(right)) for loss, right in self._through(part, lengths, batch)]

    def texts(self, part: str, prompts: Sequence[Prompt]) -> list[str]:
        """What follows each prompt."""

        def batch(places: Sequence[int]) -> list[Any]:
            chosen = [prompts[place] for place in places]
            return self._rank_calls.call("write", [one.tokens for one in chosen], [one.options for one in chosen])

        lengths = [len(one.tokens) + int(one.options["max_new_tokens"]) for one in prompts]
        return [str(text) for text in self._through(part, lengths, batch)]

    def _through(self, part: str, lengths: Sequence[int], compute: Callable[[Sequence[int]], list[Any]]) -> list[Any]:
        """The value of each place, known or computed."""
        known = self._journal.known(part)
        for places in batches(lengths, known, self._batch_tokens):
            self._progress(len(known), len(lengths))
            self._journal.add(part, places, compute(places))
        self._progress(len(lengths), len(lengths))
        return [known[place] for place in range(len(lengths))]


def batches(lengths: Sequence[int], known: Mapping[int, Any], most_tokens: int) -> Iterator[list[int]]:
    """Places whose sequences are computed at once, long ones first: what does not fit in memory shows at the start.

    The batches that are left are those that there would have been, so that a text is computed as if never interrupted.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > most_tokens:
            if not all(each in known for each in batch):
                yield batch
            batch = []
        batch.append(place)
    if batch and not all(each in known for each in batch):
        yield batch
