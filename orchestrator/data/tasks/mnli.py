"""MNLI as GLUE ships it: a TSV file of premises, hypotheses and how the one stands to the other (Williams et al. 2018).

Light.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.data.tasks.examples import Example, read_lines
from orchestrator.errors import UserError

LABELS = ("contradiction", "entailment", "neutral")
"""In Megatron-LM's order."""
_COLUMNS = {"premise": ("sentence1", "premise"), "hypothesis": ("sentence2", "hypothesis"), "label": ("gold_label",)}
_NO_AGREEMENT = "-"
"""The label of an example on which the annotators did not agree."""


def read_mnli(path: Path) -> Iterator[Example]:
    """The examples of one file, without those that have no agreed label.

    The first line names the columns. Raises UserError, with the line, for a file of another format.
    """
    lines = read_lines(path)
    place, header = next(lines, (f"{path}:1", ""))
    names = header.split("\t")
    columns = [_column(names, column, place) for column in _COLUMNS]
    for place, line in lines:
        if not line.strip():
            continue
        row = line.split("\t")
        if len(row) != len(names):
            raise UserError(
                f"{place}: this row has {len(row)} columns, and the first line names {len(names)}",
                code="wrong_column_count",
            )
        premise, hypothesis, label = (row[column].strip() for column in columns)
        if label == _NO_AGREEMENT:
            continue
        if label not in LABELS:
            raise UserError(
                f"{place}: the label {label!r} is none of {', '.join(LABELS)}, and - for none", code="unknown_label"
            )
        for column, text in (("premise", premise), ("hypothesis", hypothesis)):
            if not text:
                raise UserError(f"{place}: the {column} is empty", code="empty_field")
        yield Example(((premise, hypothesis),), LABELS.index(label))


def _column(names: list[str], column: str, place: str) -> int:
    for name in _COLUMNS[column]:
        if name in names:
            return names.index(name)
    wanted = " or ".join(_COLUMNS[column])
    raise UserError(
        f"{place}: no column {wanted} for the {column}; the first line names the columns of a TSV file of MNLI, "
        "and a test file without labels cannot be used",
        code="missing_column",
    )
