"""Files that are one JSON array, as Alpaca and LLaVA are published: read as if each element were a line."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.limits import set_limits
from support.refused import refused

from orchestrator.data.indexed_dataset.header import bin_path, idx_path
from orchestrator.data.input.json_array import ArrayError, elements
from orchestrator.data.input.sources import find_inputs, read_chunks
from orchestrator.data.request import TextRequest

Tokenize = Callable[..., Path]

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 0, 2]), st.booleans(), st.integers(1, 9))
@settings(max_examples=examples(150), deadline=None)
def test_any_array_is_its_elements(array: list[Any], indent: int | None, ascii_only: bool, piece: int) -> None:
    """However few bytes are read at a time, and from each element on again."""
    content = f" \n{json.dumps(array, indent=indent, ensure_ascii=ascii_only)}\n ".encode()
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, piece_of_an_array=piece)
        found = list(elements(io.BytesIO(content), 0, 0, 1 << 20))
        for number, element in enumerate(found):
            rest = io.BytesIO(content[element.offset :])
            assert list(elements(rest, element.offset, element.lines, 1 << 20)) == found[number + 1 :]
    assert [json.loads(element.content) for element in found] == array
    assert all(b"\n" not in element.content for element in found)
    assert all(element.lines == content[: element.offset].count(b"\n") for element in found)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b'[{"a": 1}\n{"a": 2}]', 2, "{ where , or ] is expected"),
        (b'[{"a": 1},\n{"a" 2}]', 2, "not valid JSON"),
        (b'[{"a": 1},\n{"a": "x', 2, "not valid JSON in the value that begins here: Unterminated string"),
        (b'[{"a": 1}', 1, "its end where , or ] is expected"),
        (b'[{"a": 1}]\n\n{"a": 1}', 3, "a JSON array ends before this"),
        (b'[{"a": 1},\n{"a": "\xff"}]', 1, "not UTF-8"),
        (b'[{"a": 1},\n' + b"[" * 9999, 2, "nested too deeply"),
        (b'[{"a": 1},\n{"a": "' + b"x" * 3000 + b'"}]', 2, "has more than"),
        (b'[{"a": 1},]', 1, "not valid JSON"),
        (b'[{"a": 1},\n{"a": ' + b"9" * 5000 + b"}]", 2, "more than 4300 digits"),
    ],
)
def test_what_is_no_array_is_told_with_its_line(content: bytes, line: int, reason: str) -> None:
    with pytest.raises(ArrayError, match=reason) as said:
        list(elements(io.BytesIO(content), 0, 0, 2000))
    assert said.value.line == line


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "indented"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_array_gives_what_its_lines_give(
    tokenize: Tokenize, tmp_path: Path, indent: int | None, chat: bool, packed: bool
) -> None:
    records = [{"instruction": "ä\n", "input": str(n), "output": "b" * n, "text": "c\n" * n} for n in range(9)]
    path, lines = tmp_path / f"alpaca.json{'.gz' * packed}", tmp_path / "alpaca.jsonl"
    content = ("\n " + json.dumps(records, indent=indent, ensure_ascii=False)).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    made = [tokenize(each, append_eod=False, chat=chat, name=each.name) for each in (path, lines)]
    assert bin_path(made[0]).read_bytes() == bin_path(made[1]).read_bytes()
    assert idx_path(made[0]).read_bytes() == idx_path(made[1]).read_bytes()


def test_reading_goes_on_from_any_position(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "x" * n} for n in range(40)], indent=1))
    files = find_inputs(TextRequest((path,))).files
    chunks = list(read_chunks(files, ("text",), chunk_bytes=100))
    assert len(chunks) > 4
    for done, chunk in enumerate(chunks, 1):
        rest = list(read_chunks(files, ("text",), chunk.end, chunk_bytes=100))
        assert [part.blocks for part in rest] == [part.blocks for part in chunks[done:]]


def test_a_bad_element_is_named_with_its_line(tokenize: Tokenize, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n {"text": "a"},\n\n {"title": "b"},\n {"text": "c"}]')
    with refused("wrong_record", "a.json:4", "'text'", "title"):
        tokenize(path)
    prefix = tokenize(path, on_error="skip")
    assert json.loads(prefix.with_name("data.skipped.jsonl").read_text())["line"] == 4
    path.write_text('[{"text": "a"},\n {"text": "b"')
    with refused("wrong_record", "a.json:2"):
        tokenize(path, name="torn")


def test_an_element_that_is_too_long(tokenize: Tokenize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, longest_record=1 << 16)
    path = tmp_path / "a.json"
    path.write_text('[{"text": "a"},\n {"text": "' + "b" * 2_000_000 + '"}]')
    with refused("wrong_record", "a.json:2"):
        tokenize(path)
