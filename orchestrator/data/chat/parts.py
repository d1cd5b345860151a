"""Content in parts, as chat templates of models that see read it, and the images in what they write. Light."""

from __future__ import annotations

from orchestrator.data.chat.images import IMAGE
from orchestrator.spec.vision import MARK

_LITERAL = "\ufdd3"
"""A noncharacter of Unicode: `MARK` in the text of people, which is no image, while a template writes its own."""


def to_parts(content: str) -> list[dict[str, str]]:
    """What a turn says, in which `IMAGE` stands for each image, as transformers' processors take it: texts and images
    in their order. Line breaks beside an image belong to no part, since a template writes its own.

    Raises ValueError for a text that cannot be told from our marks.
    """
    if _LITERAL in content:
        raise ValueError("its text holds a noncharacter of Unicode, U+FDD3")
    first, *others = content.replace(MARK, _LITERAL).split(IMAGE)
    if not others:
        return [_text(first)]
    texts = [first.rstrip("\r\n"), *(text.strip("\r\n") for text in others[:-1]), others[-1].lstrip("\r\n")]
    parts = [part for text in texts for part in ({"type": "image"}, _text(text)) if part.get("text") != ""]
    return parts[1:]


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def images_found(text: str, images: int) -> str:
    """What a template made of such parts, with `IMAGE` for each image that it wrote: those of a turn in their order,
    wherever in the turn. Raises ValueError where they are not as many as it was given."""
    if (found := text.count(MARK)) != images:
        raise ValueError(f"the chat template writes {found} {MARK} for {images} images")
    return text.replace(MARK, IMAGE).replace(_LITERAL, MARK)
