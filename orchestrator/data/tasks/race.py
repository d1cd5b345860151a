"""RACE as it is distributed: articles in folders, each with questions, four options and answers (Lai et al. 2017).

Light.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from orchestrator.data.input.json_values import read_json
from orchestrator.data.tasks.examples import Example, read_lines
from orchestrator.errors import UserError, file_refusal
from orchestrator.files.folder_tree import folder_tree

OPTIONS = "ABCD"
_HALF = re.compile("[\ud800-\udfff]")
_ENDINGS = (".txt", ".json", ".jsonl")


def race_files(path: Path) -> list[Path]:
    """The files of a folder and of those below it, in an order that is the same everywhere; a file is itself. Raises
    UserError where something in it cannot be read: its questions would be missing."""
    if not path.is_dir():
        return [path]
    with file_refusal(path):
        tree = folder_tree(path)
    if unread := [each for each in tree.left_out if not each.is_read]:
        raise UserError(f"{unread[0]}; take it out of {path}, or fix it", code="unreadable_folder")
    return [each for each in tree.files if each.suffix.lower() in _ENDINGS]


def read_race(path: Path) -> Iterator[Example]:
    """The questions of a folder or a file, a JSON object a line.

    The pairs of a question are the question with each option, and the article. Raises UserError, with the line, for
    files of another format, and for a folder without files.
    """
    files = race_files(path)
    if not files:
        raise UserError(f"{path} has no files that end in {', '.join(_ENDINGS)}", code="no_matching_files")
    for file in files:
        for place, line in read_lines(file):
            if line.strip():
                yield from _questions(_record(line, place), place)


def _record(line: str, place: str) -> dict[str, Any]:
    try:
        record = read_json(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: this is not a JSON object on one line: {error}", code="not_json") from error
    if not isinstance(record, dict):
        raise UserError(f"{place}: this is not a JSON object", code="not_a_json_object")
    return record


def _questions(record: dict[str, Any], place: str) -> Iterator[Example]:
    article, questions = record.get("article"), record.get("questions")
    options, answers = record.get("options"), record.get("answers")
    if not _is_text(article) or not article.strip():
        raise UserError(f"{place}: there is no text as article", code="missing_field")
    if not _are_texts(questions) or not _are_texts(answers) or not isinstance(options, list):
        raise UserError(
            f"{place}: questions and answers must be lists of texts, and options a list of lists of them",
            code="wrong_field_type",
        )
    if not len(questions) == len(options) == len(answers):
        counts = f"{len(questions)} questions, {len(options)} lists of options and {len(answers)} answers"
        raise UserError(f"{place}: there are {counts}", code="question_counts_differ")
    for number, (question, choices, answer) in enumerate(zip(questions, options, answers, strict=True), start=1):
        if not _are_texts(choices) or len(choices) != len(OPTIONS):
            raise UserError(
                f"{place}: question {number} does not have {len(OPTIONS)} texts as options", code="wrong_options"
            )
        if len(answer) != 1 or answer not in OPTIONS:
            raise UserError(
                f"{place}: the answer to question {number} is {answer!r}, and none of {', '.join(OPTIONS)}",
                code="unknown_answer",
            )
        yield Example(tuple((_filled_in(question, each), article) for each in choices), OPTIONS.index(answer))


def _is_text(value: Any) -> TypeGuard[str]:
    # Half of a surrogate pair can be written in JSON, and is no text.
    return isinstance(value, str) and _HALF.search(value) is None


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(_is_text(item) for item in value)


def _filled_in(question: str, option: str) -> str:
    """The option in the blank of a question, or behind one that has none."""
    return question.replace("_", option) if "_" in question else f"{question} {option}"
