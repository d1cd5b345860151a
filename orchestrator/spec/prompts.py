"""A file of prompts: JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.spec.generation import Generation, options_of

NO_TEXT = "holds half of a surrogate pair (U+D800 to U+DFFF), which is no character; write the character itself"
_SHOWN = 20


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8; JSON's escapes can spell half of a surrogate pair, which cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_prompts(path: Path, defaults: Mapping[str, Any]) -> list[tuple[str, Generation]]:
    """Every line's `prompt`, with its options: `defaults`, and over them whatever else the line says.

    Empty lines are passed over. Raises UserError that names every line that is wrong, with what is.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    found, wrong = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(_prompt(line, defaults))
        except UserError as error:
            wrong.append(f"{path}:{number}: {error}")
    if wrong:
        more = [f"… and {len(wrong) - _SHOWN} more lines"] if len(wrong) > _SHOWN else []
        raise UserError("\n".join([*wrong[:_SHOWN], *more]))
    if not found:
        raise UserError(f"{path} has no prompts; write a JSON object a line, like " + '{"prompt": "def main("}')
    return found


def _prompt(line: bytes, defaults: Mapping[str, Any]) -> tuple[str, Generation]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
        raise UserError('not an object with a text "prompt"')
    if not is_text(record["prompt"]):
        raise UserError(f"the prompt {NO_TEXT}")
    own = {name: value for name, value in record.items() if name != "prompt"}
    return record["prompt"], options_of({**defaults, **own})
