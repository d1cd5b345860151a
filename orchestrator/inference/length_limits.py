"""What is said of a prompt that does not fit, alone or with the tokens that are to follow it."""

from __future__ import annotations

from orchestrator.errors import UserError
from orchestrator.spec.model import ModelSpec

_MOST_TOKENS = 1 << 22
"""Of a prompt and what is written after it, where a model has learned no positions: memory is taken for all of them."""


def refusal(prompt: int, new: int, most: int, limit: str, images: int = 0) -> str | None:
    """Why a prompt of so many tokens and `new` ones after it are too many for `most`, and what to do; None where they
    fit. `limit` says in words what there is; `images`: how many of the prompt's tokens images take.
    """
    if prompt + new <= most:
        return None
    patches = f" (of which images take {images})" if images else ""
    if prompt >= most:
        return (
            f"the prompt has {prompt} tokens{patches}, but {limit}: shorten the prompt to {most - 1} tokens at most, "
            "which leaves room for a new one"
        )
    return (
        f"{prompt} prompt tokens{patches} + {new} new ones = {prompt + new}, but {limit}; ask for at most "
        f"{most - prompt} new tokens"
    )


def limit_of(model: ModelSpec, prompt: int, longest: int | None) -> tuple[int, str]:
    """How many tokens a text may have, with its prompt, and that in words; `longest`: positions that there are.

    With LongRoPE a text stays on the side of its switch that the model's samples are on: the keys that are kept of it
    are rotated by the frequencies of that side. Raises UserError where the prompt is on the other one.
    """
    if longest is not None:
        return longest, f"the model has learned {longest} positions"
    scaling = model.rope_scaling
    least, most = (1, None) if scaling is None else scaling.lengths_like(model.seq_length)
    if prompt < least:
        raise UserError(
            f"the prompt has {prompt} tokens, but this model, whose samples have {model.seq_length} "
            f"(model.seq_length), writes behind {least} or more: in shorter texts its rotary positions (longrope) are "
            "others",
            code="sequence_too_short",
        )
    if most is None:
        return _MOST_TOKENS, f"at most {_MOST_TOKENS} are taken"
    return most, f"at most {most} are taken: in longer texts its rotary positions (longrope) are others"
