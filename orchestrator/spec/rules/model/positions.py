"""Positions and vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.model import ModelSpec

BYTE_LEVEL_TOKENS = 261
"""The bytes, the end of a document, and [PAD], [CLS], [SEP] and [MASK] of masked language models."""


def learned_positions(job: JobSections) -> Iterator[Problem]:
    """A learned position table covers the sequence."""
    model = job.model
    most, offset = model.longest_positioned, model.position_embedding_offset
    if model.position_embedding_type == "learned_absolute" and model.seq_length > most:
        without = f" - position_embedding_offset {offset}" if offset else ""
        message = (
            f"learned positions cover max_position_embeddings tokens: "
            f"seq_length {model.seq_length} > max_position_embeddings {model.positions}{without}"
        )
        hint = f"write a seq_length of at most {max(most, 0)}, or raise max_position_embeddings"
        yield Problem(message, ("model.seq_length", "model.max_position_embeddings"), hint)


def vocabulary_of_bytes(job: JobSections) -> Iterator[Problem]:
    """The byte-level tokenizer has a known number of tokens."""
    size = job.model.vocab_size
    if size is None or job.data.random_tokens or job.data.tokenizer.type != "byte_level":
        return
    tokens = BYTE_LEVEL_TOKENS + job.data.tokenizer.vocab_extra_ids
    if size < tokens:
        message = f"the byte_level tokenizer has {tokens} tokens: vocab_size {size} < {tokens}"
        hint = f"write at least {tokens}, or leave it out"
        yield Problem(message, ("model.vocab_size", "data.tokenizer.type"), hint)


def vocabulary_padding(job: JobSections) -> Iterator[Problem]:
    """Padding rounds a vocabulary up to a multiple; a multiple above the vocabulary itself is a slip."""
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    unit, size = model.make_vocab_size_divisible_by, model.vocab_size
    default = ModelSpec.model_fields["make_vocab_size_divisible_by"].default
    if size is None or unit <= max(size, default):
        return
    padded = -(-size // (unit * tp)) * unit * tp
    message = (
        f"pads the vocabulary to more than its own size: vocab_size {size} up to a multiple of "
        f"{unit} · TP = {unit} · {tp} is {padded}"
    )
    yield Problem(message, ("model.make_vocab_size_divisible_by", "model.vocab_size"), f"{default} is usual")


RULES = (
    learned_positions,
    vocabulary_of_bytes,
    vocabulary_padding,
)
