"""What a turn of a conversation says: a text, or parts of text and images, in OpenAI's words."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.data.chat.images import IMAGE
from orchestrator.inference.serving.ignored_fields import Inert, without_inert
from orchestrator.spec.generation import unknown_option

_MOST_PARTS = 4096
_INERT: Inert = {"detail": ("auto", None)}
"""Of an image: each is shown at the size that the model takes."""
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
        raise ValueError(f"the content has {len(given)} parts; at most {_MOST_PARTS}")
    parts = list(_parts(given))
    return Content("".join(text for text, _ in parts), tuple(image for _, image in parts if image is not None))


def _parts(given: list[object]) -> Iterator[tuple[str, bytes | None]]:
    """The text of each part, and its image."""
    for number, part in enumerate(given):
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get(kind) if isinstance(part, dict) and isinstance(kind, str) else None
        where = f"part {number}: "
        if isinstance(part, dict) and kind == "text" and isinstance(value, str):
            _check_fields(part, ("type", kind), {}, where)
            yield _checked(value), None
        elif isinstance(part, dict) and kind == "image_url" and isinstance(value, dict):
            _check_fields(part, ("type", kind), {}, where)
            _check_fields(value, ("url",), _INERT, f"{where}{kind}.")
            yield IMAGE, _image(value.get("url"), where)
        else:
            raise ValueError(
                f'{where}expects {{"type": "text", "text": …}} or {{"type": "image_url", "image_url": {{"url": …}}}}'
            )


def _check_fields(given: Mapping[str, object], legal: Collection[str], inert: Inert, where: str) -> None:
    """Raises ValueError for the first field that is not legal."""
    try:
        unknown = next((name for name in without_inert(given, inert) if name not in legal), None)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error
    if unknown is not None:
        raise ValueError(unknown_option(unknown, legal, where))


def _checked(text: str) -> str:
    if IMAGE in text:
        raise ValueError("its text holds a noncharacter of Unicode, U+FDD2")
    return text


def _image(url: object, where: str) -> bytes:
    start = _DATA_URL.match(url) if isinstance(url, str) else None
    if start is None or not isinstance(url, str):
        raise ValueError(f"{where}URLs are not fetched; send the image itself, as data:image/png;base64,…")
    try:
        return base64.b64decode(url[start.end() :], validate=True)
    except ValueError as error:  # binascii's own, or of text that is not ASCII
        raise ValueError(f"{where}its image is not base64: {error}") from error
