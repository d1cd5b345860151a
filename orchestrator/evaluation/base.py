"""What a task is, and what it may ask of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import UserError
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest
from orchestrator.run_directory.results.record import Measure
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True)
class ScoredTokens:
    """Token ids, of which those from `first` on are scored, each given all before it."""

    tokens: Sequence[int]
    first: int


@dataclass(frozen=True)
class Score:
    """The natural logarithm of the probability of what was scored, and whether each token of it was the likeliest."""

    logprob: float
    greedy: bool


@dataclass(frozen=True)
class Answer:
    """The loss of one example of a task, and whether it was answered rightly."""

    loss: float
    right: bool


@dataclass(frozen=True)
class Prompt:
    """Token ids to go on from, and how: fields of spec/generation.py, in JSON."""

    tokens: Sequence[int]
    options: dict[str, Any]


class Examples(Protocol):
    """Examples that are made when they are asked for: each has `text`, `types`, `padding_mask`, [c, s], and `label`."""

    tokens_each: int
    """c · s."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, Any]: ...


class TaskNetwork(Protocol):
    """The network under its layout, as rank 0 sees it. What was computed is kept at once, under the name of a part:
    asked again for the same, after the process was killed, it is there.
    """

    def scores(self, part: str, sequences: Sequence[ScoredTokens]) -> list[Score]:
        """A score of each sequence."""

    def answers(self, part: str, examples: Examples) -> list[Answer]:
        """What a fine-tuned BERT answers to each example."""

    def texts(self, part: str, prompts: Sequence[Prompt]) -> list[str]:
        """What the network writes after each prompt, up to a stop string."""


@dataclass(frozen=True)
class TaskResult:
    """What a task says in the end."""

    metrics: Mapping[str, Measure]
    counts: Mapping[str, int]


class Task(Protocol):
    """One thing that is measured; whatever of it can be wrong has been found when it exists."""

    contents: str
    """A digest of what is measured on, where that is not in the files that are asked for; else empty."""
    libraries: Sequence[str]
    """Packages whose versions a result names."""

    def measure(self, work: TaskNetwork) -> TaskResult:
        """Ask the network, and make numbers of what it says."""


@dataclass(frozen=True)
class TaskContext:
    """What tasks are made for."""

    job: JobSpec
    tokenizer: Tokenizer

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequence; None where positions do not limit it."""
        model = self.job.model
        return model.longest_positioned if model.position_embedding_type == "learned_absolute" else None

    def prefix(self, asked: EvaluationRequest) -> list[int]:
        """The token that begins every sequence, where this is asked for. Raises UserError when there is none."""
        if not asked.options.get("add_bos"):
            return []
        if self.tokenizer.bos is None:
            raise UserError(
                "--add-bos: the tokenizer of this model has no token that begins a text", code="no_begin_token"
            )
        return [self.tokenizer.bos]
