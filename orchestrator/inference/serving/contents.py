"""What a turn of a conversation says: a text, or parts of text and images, in OpenAI's words."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.data.chat.images import IMAGE

_MOST_PARTS = 4096
_DATA_URL = re.compile(r"data:[^,;]*(;[^,;]*)*;base64,", re.IGNORECASE)


@dataclass(frozen=True)
class Content:
    """The text of a turn, in which `IMAGE` stands for each of its images, and what is in their files."""

    text: str
    images: tuple[bytes, ...] = ()


def read_content(given: object) -> Content:
    """A turn's content. Parts are put together as they are, without anything between them. Raises ValueError."""
    if isinstance(given, str):
        return Content(_checked(given))
    if not isinstance(given, list):
        raise ValueError("a content is a string, or a list of parts")
    if len(given) > _MOST_PARTS:
        raise ValueError(f"a content of {len(given)} parts; at most {_MOST_PARTS}")
    parts = list(_parts(given))
    return Content("".join(text for text, _ in parts), tuple(image for _, image in parts if image is not None))


def _parts(given: list[object]) -> Iterator[tuple[str, bytes | None]]:
    """The text of each part, and its image."""
    for number, part in enumerate(given):
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get(kind) if isinstance(part, dict) and isinstance(kind, str) else None
        if kind == "text" and isinstance(value, str):
            yield _checked(value), None
        elif kind == "image_url":
            yield IMAGE, _image(value.get("url") if isinstance(value, dict) else None, number)
        else:
            raise ValueError(
                f'part {number} is neither {{"type": "text", "text": …}} nor '
                '{"type": "image_url", "image_url": {"url": …}}'
            )


def _checked(text: str) -> str:
    if IMAGE in text:
        raise ValueError("its text holds a noncharacter of Unicode, U+FDD2")
    return text


def _image(url: object, number: int) -> bytes:
    start = _DATA_URL.match(url) if isinstance(url, str) else None
    if start is None or not isinstance(url, str):
        raise ValueError(f"part {number}: nothing is fetched; send the image itself, as data:image/png;base64,…")
    try:
        return base64.b64decode(url[start.end() :], validate=True)
    except ValueError as error:  # binascii's own, or of text that is not ASCII
        raise ValueError(f"part {number}: its image is not base64: {error}") from error
