"""Prompts, with images or without; a file of them has JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import UserError, file_refusal
from orchestrator.spec.generation import Generation, options_of
from orchestrator.spec.vision import MARK, marks_problem

NO_TEXT = "holds half of a surrogate pair (U+D800 to U+DFFF), which is no character; write the character itself"
_SHOWN = 20
_IMAGES = ("image", "images")
"""Keys of a line that name its images: one, as training data has it, or a list."""
_GIVEN_BY = '"images": ["cat.jpg"] in its line'


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8; JSON's escapes can spell half of a surrogate pair, which cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Line(NamedTuple):
    """A line of a file of prompts."""

    prompt: str
    options: Generation
    images: tuple[Path, ...]
    """The files of its images."""
    place: str
    """Where it is: `prompts.jsonl:3`."""


def read_prompts(path: Path, defaults: Mapping[str, Any], *, sees: bool = False) -> list[Line]:
    """Every line's `prompt` and `images`, whose paths lead from the file's folder, with its options: `defaults`, and
    over them whatever else the line says. `sees`: whether the model sees images.

    Empty lines are passed over. Raises UserError that names every line that is wrong, with what is.
    """
    with file_refusal(path):
        lines = path.read_bytes().split(b"\n")
    found, wrong = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(_prompt(line, defaults, path.parent, sees, f"{path}:{number}"))
        except UserError as error:
            wrong.append(f"{path}:{number}: {error}")
    refuse_lines(wrong)
    if not found:
        raise UserError(
            f"{path} has no prompts; write a JSON object a line, like " + '{"prompt": "def main("}', code="no_prompts"
        )
    return found


def refuse_lines(wrong: Sequence[str]) -> None:
    """Raises UserError with what is wrong with lines of a file, each with its place; nothing where none is."""
    if wrong:
        more = [f"… and {len(wrong) - _SHOWN} more lines"] if len(wrong) > _SHOWN else []
        raise UserError("\n".join([*wrong[:_SHOWN], *more]), code="wrong_prompts")


def _prompt(line: bytes, defaults: Mapping[str, Any], folder: Path, sees: bool, place: str) -> Line:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", code="not_json") from error
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
        raise UserError('not an object with a text "prompt"', code="prompt_not_an_object")
    if not is_text(record["prompt"]):
        raise UserError(f"the prompt {NO_TEXT}", code="malformed_prompt")
    own = {name: value for name, value in record.items() if name not in ("prompt", *_IMAGES)}
    if all(record.get(name) for name in _IMAGES):
        raise UserError('it has both "image" and "images": write one of them', code="prompt_with_image_twice")
    images = _files([record["image"]] if record.get("image") else record.get("images"), folder)
    if problem := marks_problem(record["prompt"].count(MARK), len(images), sees=sees, given_by=_GIVEN_BY):
        raise UserError(f"the prompt {problem}", code="malformed_prompt")
    return Line(record["prompt"], options_of({**defaults, **own}), images, place)


def _files(given: object, folder: Path) -> tuple[Path, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(name, str) and is_text(name) for name in given):
        raise UserError(
            '"images" is not a list of the names of files, nor "image" the name of one', code="malformed_prompt_images"
        )
    paths = tuple(folder / name for name in given)
    check_files(paths)
    return paths


def check_files(images: Sequence[Path]) -> None:
    """Raises UserError for the first that is no file."""
    for path in images:
        if not path.is_file():
            raise UserError(
                f"image {path} {'is no file' if path.exists() else 'does not exist'}", code="file_not_found"
            )
