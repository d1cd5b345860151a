"""LAMBADA: the last word of a passage, which can only be told from all of it (Paperno et al. 2016)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.data.tasks.examples import read_lines
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import UserError
from orchestrator.evaluation.base import ScoredTokens, TaskContext, TaskNetwork, TaskResult
from orchestrator.evaluation.statistics import exponential, mean, scaled
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest

_FIELD = "text"


class Lambada:
    """Whether the last word of each passage is the likeliest continuation, all of its tokens; where it is not strict,
    the last token alone. As in Megatron-LM's tasks/zeroshot_gpt, so no end of a sentence follows the word.
    """

    contents = ""
    libraries: Sequence[str] = ()

    def __init__(self, asked: EvaluationRequest, setting: TaskContext) -> None:
        self.strict = bool(asked.options["strict"])
        prefix = setting.prefix(asked)
        self.sequences = []
        for place, text in _passages(Path(asked.where)):
            context, target = _parted(text, setting.tokenizer, self.strict)
            context = [*prefix, *context]
            if not context:
                raise UserError(
                    f"{place}: nothing precedes the last {'word' if self.strict else 'token'}", code="no_context"
                )
            # The last token is scored and not read.
            length = len(context) + len(target) - 1
            if setting.longest is not None and length > setting.longest:
                raise UserError(
                    f"{place}: the passage has {length} tokens, but the model has learned {setting.longest} positions: "
                    "shorten the passage, or leave it out",
                    code="passage_too_long",
                )
            self.sequences.append(ScoredTokens([*context, *target], len(context)))
        if not self.sequences:
            raise UserError(
                f"{asked.where} has no passages: LAMBADA is a JSON object with {_FIELD!r} on each line",
                code="no_passages",
            )

    def measure(self, work: TaskNetwork) -> TaskResult:
        scores = work.scores("passages", self.sequences)
        loss = scaled(mean([score.logprob for score in scores]), -1.0)
        accuracy = mean([float(score.greedy) for score in scores])
        metrics = {"accuracy" if self.strict else "last_token_accuracy": accuracy, "perplexity": exponential(loss)}
        right = sum(score.greedy for score in scores)
        return TaskResult(metrics, {"passages": len(scores), "right": right})


def _parted(text: str, tokenizer: Tokenizer, strict: bool) -> tuple[list[int], list[int]]:
    """Tokens of a passage, and of what is to be told from them."""
    if not strict:
        tokens = tokenizer.encode(text)
        return tokens[:-1], tokens[-1:]
    word = text.split()[-1]
    before = text[: text.rindex(word)].strip()
    if not before:
        return [], tokenizer.encode(word)
    context, together = tokenizer.encode(before), tokenizer.encode(f"{before} {word}")
    if together[: len(context)] == context:
        return context, together[len(context) :]
    # The context ends otherwise beside the word. By itself, where a tokenizer puts a space before a text, it has two.
    return context, tokenizer.encode(f" {word}")


def _passages(path: Path) -> Iterator[tuple[str, str]]:
    """Each passage after its place. Raises UserError for a file of another format."""
    for place, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: this is not a JSON object on one line: {error}", code="not_json") from error
        text = record.get(_FIELD) if isinstance(record, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise UserError(
                f"{place}: there is no text under {_FIELD!r}; LAMBADA is a JSON object with it on each line",
                code="missing_field",
            )
        yield place, text
