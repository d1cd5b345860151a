"""What is said of a prompt that does not fit, alone or with the tokens that are to follow it."""

from __future__ import annotations


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
