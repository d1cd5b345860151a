"""Samples of a task: token ids of its examples, made when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from orchestrator.data.checks import BLEND, path_names
from orchestrator.data.samples.datasets import Datasets, Samples
from orchestrator.data.tasks.examples import Example, cleaned
from orchestrator.data.tasks.files import read_examples
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.spec.sections.task import TaskSpec

NO_LABEL = -100
"""The label of a sample that only fills up a batch; torch's losses leave it out."""
_LONGEST_QUESTION = 128
"""Tokens of a question with its option, at most, as Megatron-LM has it: the rest is the article's."""


class TaskSamples(Dataset[dict[str, Any]]):
    """Item i holds `text`, `types` (which part a token is of) and `padding_mask` (1 where there is a token), [c, s] of
    int64, c sequences for each example; and `label`.
    """

    def __init__(
        self, task: TaskSpec, examples: Sequence[Example], tokenizer: Tokenizer, length: int, seed: int
    ) -> None:
        self.task, self.examples, self.tokenizer, self.length, self.seed = task, examples, tokenizer, length, seed
        self.longest = length if task.name != "race" else _LONGEST_QUESTION
        self._order: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return len(self.examples)

    def sample(self, epoch: int, place: int) -> dict[str, Any]:
        """The sample at a place of an epoch. Each epoch has an order of its own, which depends on the seed alone."""
        if self._order[0] != epoch:
            random = np.random.RandomState((self.seed + epoch) % 2**32)
            self._order = (epoch, random.permutation(len(self.examples)))
        return self.encoded(self.examples[self._order[1][place]])

    def encoded(self, example: Example) -> dict[str, Any]:
        """The sample that is made of an example."""
        texts = list(dict.fromkeys(text for pair in example.pairs for text in pair))  # an article once
        ids = dict(zip(texts, self.tokenizer.encode_batch([cleaned(text) for text in texts]), strict=True))
        rows = [self._row(ids[first], ids[second]) for first, second in example.pairs]
        text, types, mask = (np.stack(parts) for parts in zip(*rows, strict=True))
        return {"text": text, "types": types, "padding_mask": mask, "label": example.label}

    def _row(self, first: list[int], second: list[int]) -> tuple[Any, Any, Any]:
        """`[CLS] A [SEP] B [SEP]`, B's end cut off where it is too long, and filled up."""
        tokenizer, length = self.tokenizer, self.length
        ids = [tokenizer.cls, *first[: self.longest], tokenizer.sep, *second]
        ids = [*ids[: length - 1], tokenizer.sep]
        places = np.arange(length)
        mask = (places < len(ids)).astype(np.int64)
        types = mask * (places >= min(len(first), self.longest) + 2)
        text = np.full(length, tokenizer.pad, dtype=np.int64)
        text[: len(ids)] = ids
        return text, types, mask


class TrainingSamples(TaskSamples):
    """As many epochs as are asked for."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.sample(*divmod(index, len(self)))


class HeldOutSamples(TaskSamples):
    """Each example once. What is asked for beyond the last one fills up a batch and has no label."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index < len(self):
            return self.sample(0, index)
        return {**self.sample(0, 0), "label": NO_LABEL}


def open_task(task: TaskSpec, tokenizer: Tokenizer, length: int, seed: int, evaluates: bool) -> Datasets:
    """The samples of a task's files, which every rank reads. All sets for validation together come first.

    Raises UserError, on all ranks alike, for files that cannot be read.
    """
    arguments = tokenizer, length, seed
    train = TrainingSamples(task, read_examples(task, task.train), *arguments)
    validation: dict[str, Samples] = {}
    if evaluates and task.validation is not None:
        read = [read_examples(task, [path]) for path in task.validation]
        together = [example for examples in read for example in examples]
        validation[BLEND] = HeldOutSamples(task, together, *arguments)
        if len(read) > 1:
            for name, examples in zip(path_names(task.validation), read, strict=True):
                validation[name] = HeldOutSamples(task, examples, *arguments)
    return Datasets(train, validation)


def examples_line(task: TaskSpec, found: Datasets, samples: int) -> str:
    """`mnli: 392,702 examples, 5.00 epochs; 19,647 for validation`."""
    held_out = next(iter(found.validation.values()), None)
    assert isinstance(found.train, TaskSamples)
    train, other = len(found.train), len(held_out) if isinstance(held_out, TaskSamples) else 0
    return f"{task.name}: {train:,} examples, {samples / train:.2f} epochs; {other:,} for validation"
