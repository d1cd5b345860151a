"""The images of conversations: where they stand in the text, and which file each is. Light."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.data.input.json_values import kind_of, shown
from orchestrator.spec.vision import MARK

IMAGE = "\ufdd2"
"""What stands for an image in our text, as `MARK` does in that of people, until it becomes the tokens of its patches: a
noncharacter of Unicode."""
_URL = re.compile(r"(https?|data):", re.IGNORECASE)
_LISTS = ("image", "images")
_PATH_KEYS = ("path", "image", "url")


@dataclass(frozen=True)
class ImagePart:
    """An image among the parts of a turn; without a path it is the next one of the conversation's list."""

    path: str | None


Content = Sequence[str | ImagePart]
"""What a turn says: text and images."""


def listed_images(value: dict[str, object]) -> list[str]:
    """The images that a line names beside its turns. Raises ValueError where they are none that can be read."""
    given = [name for name in _LISTS if value.get(name)]
    if len(given) > 1:
        raise ValueError("it has both 'image' and 'images': write one of them")
    if not given:
        return []
    images = value[given[0]]
    if isinstance(images, list):
        return [_path(image, f"{given[0]}[{number}]") for number, image in enumerate(images)]
    return [_path(images, given[0])]


def read_parts(parts: list[object], where: str) -> Content:
    """What a turn says whose content is in parts. Raises ValueError for those that are neither text nor images."""
    return [_part(part, f"{where}[{number}]") for number, part in enumerate(parts)]


def empty_list(value: dict[str, object]) -> str | None:
    """The key under which a line has images, and none of them; None where it has no such key."""
    return next((name for name in _LISTS if name in value), None) if not any(map(value.get, _LISTS)) else None


def place_images(
    contents: Sequence[Content], listed: Sequence[str], empty: str | None = None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Of each turn the text, in which `IMAGE` stands for an image, and its images. A conversation without images keeps
    its text as it is. Raises ValueError where the text names other than `listed` images; and where it names any, and
    the line has a key for them, `empty`.
    """
    parts = [part for content in contents for part in content]
    marks = sum(part.count(MARK) if isinstance(part, str) else part.path is None for part in parts)
    if not listed and all(isinstance(part, str) for part in parts):
        if marks and empty is not None:
            raise ValueError(
                f"its text has {MARK}, and {empty!r} is empty: name its image there, or leave {empty!r} out where "
                f"{MARK} is text"
            )
        yield from (("".join(part for part in content if isinstance(part, str)), ()) for content in contents)
        return
    if marks != len(listed):
        raise ValueError(_other_count(parts, marks, len(listed)))
    if any(IMAGE in part for part in parts if isinstance(part, str)):
        raise ValueError("its text holds a noncharacter of Unicode, U+FDD2")
    following = iter(listed)
    for content in contents:
        text, images = "", []
        for part in content:
            text += part.replace(MARK, IMAGE) if isinstance(part, str) else IMAGE
            if isinstance(part, str):
                images += [next(following) for _ in range(part.count(MARK))]
            else:
                images.append(next(following) if part.path is None else part.path)
        yield text, tuple(images)


def _other_count(parts: Sequence[str | ImagePart], marks: int, listed: int) -> str:
    """Why there are not as many marks as listed images."""
    own = sum(isinstance(part, ImagePart) and part.path is not None for part in parts)
    written = sum(part.count(MARK) for part in parts if isinstance(part, str))
    if own and not listed and written:
        return (
            f"its text has {MARK}, and its images are named in parts: text next to them cannot contain a literal "
            f"{MARK}, which would mean another image; write it differently"
        )
    if own and not marks:
        return (
            f"its images are named both in parts ({own}) and beside the turns ({listed}): name each once, or write "
            f'{MARK}, or a part {{"type": "image"}} without a path, where one of those beside the turns stands'
        )
    own_too = f", and {own} more in parts" if own else ""
    return f"its text has {marks} {MARK} for {listed} images{own_too}: each stands for one"


def _part(part: object, where: str) -> str | ImagePart:
    if not isinstance(part, dict):
        raise ValueError(f"{where} is not an object but {kind_of(part)}")
    kind = part.get("type")
    if kind == "text":
        return checked_text(part.get("text"), f"{where}.text")
    if kind == "image_url":
        inner = part.get("image_url")
        return ImagePart(_path(inner.get("url") if isinstance(inner, dict) else inner, f"{where}.image_url.url"))
    if kind == "image":
        given = [name for name in _PATH_KEYS if part.get(name) is not None]
        if len(given) > 1:
            raise ValueError(f"{where} has {' and '.join(given)}: write one of them")
        return ImagePart(_path(part[given[0]], f"{where}.{given[0]}") if given else None)
    raise ValueError(f"{where} has type {shown(kind)}; known are text, image, image_url")


def checked_text(value: object, where: str) -> str:
    """A text. Raises ValueError for anything else, and for half of a surrogate pair, which JSON can hold and no
    tokenizer takes."""
    if not isinstance(value, str):
        raise ValueError(f"{where} is not text but {kind_of(value)}")
    if not value.isascii():
        value.encode()
    return value


def _path(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is not the path of an image but {kind_of(value)}")
    if not value:
        raise ValueError(f"{where} is empty: write the path of an image")
    if _URL.match(value):
        raise ValueError(f"{where} is a URL ({value[:40]}), but images are read from files: download it first")
    return checked_text(value, where)
