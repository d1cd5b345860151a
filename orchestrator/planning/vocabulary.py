"""The size of the vocabulary, and its padding so that the tensor-parallel ranks share it evenly."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from orchestrator.data.tokenizers.vocabulary import (
    MASKED_LM_TOKENS,
    UNREADABLE_TOKENIZER,
    missing_masked_lm_tokens,
    vocabulary_size,
)
from orchestrator.errors import Problem, SpecError, UserError
from orchestrator.spec.job import JobSpec


class Vocabulary(NamedTuple):
    """Token counts of a job."""

    size: int
    """Tokens that can occur."""
    padded_size: int
    """Rows of the embedding table over all tensor-parallel ranks."""
    tokenizer_size: int | None
    """Tokens of the tokenizer; None when its files are not on this machine or it is not used."""


def padded_vocab_size(size: int, divisible_by: int, tp: int) -> int:
    """`size` rounded up to a multiple of `divisible_by` · `tp`."""
    multiple = divisible_by * tp
    return -(-size // multiple) * multiple


def vocabulary(job: JobSpec) -> Vocabulary:
    """The vocabulary of a job, from `model.vocab_size` or else from its tokenizer.

    Raises SpecError when the tokenizer cannot be read, has more tokens than `model.vocab_size`, or lacks those of a
    masked language model. Where a size is written, a tokenizer whose files are not on this machine is not an error.
    """
    written = job.model.vocab_size
    counted = None
    if written is None or _tokenizer_is_here(job):
        counted = _tokenizer_size(job)
        _check_masked_lm_tokens(job)
    if written is not None and counted is not None and counted > written:
        raise SpecError(
            problems=[
                Problem(
                    f"{written} is smaller than the tokenizer's {counted} tokens",
                    ("model.vocab_size", "data.tokenizer"),
                    hint=f"write at least {counted}, or leave it out to take the tokenizer's size",
                    code="vocabulary_too_small",
                )
            ]
        )
    size = written if written is not None else counted
    assert size is not None
    padded = padded_vocab_size(size, job.model.make_vocab_size_divisible_by, job.parallelism.tensor_model_parallel_size)
    return Vocabulary(size, padded, counted)


def _tokenizer_size(job: JobSpec) -> int:
    try:
        return vocabulary_size(job.data.tokenizer)
    except UserError as error:
        hint = None if job.model.vocab_size else "without its files, write the number of tokens as model.vocab_size"
        paths = ("data.tokenizer", "model.vocab_size")
        raise SpecError(problems=[Problem(str(error), paths, hint, code=UNREADABLE_TOKENIZER)]) from error


def _check_masked_lm_tokens(job: JobSpec) -> None:
    """Raises SpecError when a masked language model's tokenizer lacks tokens that its samples are made of."""
    if not job.model.family.is_masked_lm or job.data.random_tokens:
        return
    missing = missing_masked_lm_tokens(job.data.tokenizer)
    if missing:
        message = f"BERT needs {', '.join(MASKED_LM_TOKENS.values())}, but the tokenizer has no {', '.join(missing)}"
        hint = "use a WordPiece vocabulary, or byte_level"
        paths = ("data.tokenizer.path", "data.tokenizer")
        raise SpecError(problems=[Problem(message, paths, hint, code="missing_tokens")])


def _tokenizer_is_here(job: JobSpec) -> bool:
    """Whether the tokenizer is used and can be read on this machine."""
    tokenizer = job.data.tokenizer
    if job.data.random_tokens:
        return False
    return tokenizer.path is None or Path(tokenizer.path).exists()
