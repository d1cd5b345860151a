"""Encoders of images that average patches, and attention in both directions among the tokens of an image."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Refusal, SuggestedValues, divisors
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule

_VISION = "model.vision"
_TYPE, _POOLED = f"{_VISION}.type", f"{_VISION}.pooled_tokens"


def pooled_tokens(job: JobSections) -> Iterator[Problem]:
    """Squares of patches are averaged where the encoder's type does this, and nowhere else."""
    if not job.model.has_vision:
        return
    vision = job.model.image_encoder
    pooled, per_side = vision.pooled_tokens, vision.image_size // vision.patch_size
    if not vision.kind.pools:
        if pooled is not None:
            message = f"is for encoders that average patches, but type is {vision.type}"
            yield Problem(message, (_POOLED, _TYPE), "write type: gemma3, or leave it out")
    elif pooled is None:
        message = f"type {vision.type} averages patches, but pooled_tokens is not set"
        yield Problem(message, (_POOLED, _TYPE), "write pooled_tokens: 256, as Gemma 3 has")
    elif isqrt(pooled) ** 2 != pooled or per_side % isqrt(pooled):
        message = (
            f"pooled_tokens {pooled} must be the square of a divisor of {per_side}, the patches per side: each token "
            "is the mean of a square of patches"
        )
        squares = [side**2 for side in divisors(per_side)]
        below = tuple(value for value in reversed(squares) if value < pooled)
        offers = (SuggestedValues(_POOLED, below, tuple(value for value in squares if value > pooled)),)
        yield Refusal(
            message,
            (_POOLED, f"{_VISION}.image_size", f"{_VISION}.patch_size"),
            numbers=(pooled, per_side),
            offers=offers,
        )


def masks_of_images(job: JobSections) -> Iterator[Problem]:
    """What would need another mask than that of images."""
    if not job.model.attends_both_ways_in_images:
        return
    if job.model.position_embedding_type == "alibi":
        message = (
            "attention in both directions among the tokens of an image would need a mask for each head under ALiBi"
        )
        yield Problem(message, ("model.position_embedding_type", _TYPE), "use rotary or learned positions")
    if job.model.attention_chunk_size is not None:
        message = "attention in chunks was not tried with attention in both directions among the tokens of an image"
        yield Problem(message, ("model.attention_chunk_size", _TYPE), "leave one of them out")


RULES: tuple[Rule, ...] = (pooled_tokens, masks_of_images)
