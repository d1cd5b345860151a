"""A safetensors file is what its library takes it for, or it is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from support.refused import refused

from orchestrator.conversion.tensors.headers import read_headers
from orchestrator.conversion.tensors.names import names_in
from orchestrator.errors import UserError

WHOLE = save({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.ones(0)})


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers") / "model.safetensors"


def test_what_a_file_says(path: Path) -> None:
    path.write_bytes(WHOLE)
    found = {header.name: header for header in read_headers(path)}
    assert {name: (header.shape, header.dtype) for name, header in found.items()} == {
        **{"a": ((2, 3), "F32"), "b": ((3,), "BF16"), "c": ((0,), "F32")},
    }
    place = found["a"]
    assert WHOLE[place.offset : place.offset + place.bytes] == torch.arange(6.0).numpy().tobytes()


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", ("torn_safetensors", "0 bytes")),
        (b"\xff" * 8 + b"{}", ("torn_safetensors", f"{2**64 - 1} bytes")),
        ((200_000_000).to_bytes(8, "little"), ("torn_safetensors", "200000000 bytes")),
        (WHOLE[:-1], ("torn_safetensors", f"{len(WHOLE) - 1} bytes", str(len(WHOLE)))),
        (WHOLE + b"\0", ("torn_safetensors", f"{len(WHOLE) + 1} bytes")),
        (file_of(b"\x80\x04pickled"), ("not_json",)),
        (file_of(b"[" * 100_000), ("not_json",)),
        (file_of([]), ("not_a_json_object",)),
        (file_of({"a": 1}), ("not_a_tensor_entry", ": a ")),
        (file_of({"a": entry([-1], 0, 4)}), ("malformed_tensor_entry", ": a ", "dtype", "shape", "data_offsets")),
        (file_of({"a": entry([1], 4, 0)}), ("malformed_tensor_entry", ": a ", "dtype", "shape", "data_offsets")),
        (file_of({"a": entry([10**30], 0, 4)}, bytes(4)), ("tensor_size_differs", ": a ", "F32", "4 bytes")),
        (file_of({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(4)), ("misplaced_tensor", ": b ")),
        (file_of({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)), ("misplaced_tensor", ": b ")),
        (file_of(b'{"a": {}, "a": {}}'), ("not_json", ": a ")),
    ],
)
def test_what_is_wrong_is_said(path: Path, content: bytes, refusal: tuple[str, ...]) -> None:
    path.write_bytes(content)
    with refused(*refusal, path):
        read_headers(path)


@given(st.data())
def test_any_bytes_are_read_as_the_library_reads_them_or_refused(path: Path, data: st.DataObject) -> None:
    """Files with bytes changed, put in or taken out. What the library refuses is refused here as well."""
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.integers(0, 4))
        content[place : place + length] = data.draw(st.binary(max_size=4))
    path.write_bytes(content)
    try:
        found = read_headers(path)
    except UserError:
        return
    try:
        with safe_open(path, framework="np") as theirs:
            for header in found:
                part = theirs.get_slice(header.name)
                assert (tuple(part.get_shape()), str(part.get_dtype())) == (header.shape, header.dtype)
            assert set(theirs.keys()) == {header.name for header in found}
    except SafetensorError as error:
        # Of what is said beside the tensors, and of formats that are no weights, nothing is read here.
        assert any(word in str(error) for word in ("metadata", "unknown variant", "expected"))  # noqa: PT017


def test_what_is_no_file(tmp_path: Path) -> None:
    with refused("file_not_found", "one.safetensors"):
        read_headers(tmp_path / "one.safetensors")
    with refused("not_a_file", tmp_path):
        read_headers(tmp_path)


def test_names_are_those_of_tensors_in_whole_files(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    assert names_in(tmp_path) == frozenset()
    file.write_bytes(save({"a": torch.ones(2)}, {"format": "pt"}))
    assert names_in(tmp_path) == {"a"}
    file.write_bytes(file.read_bytes()[:-1])
    assert names_in(tmp_path) == frozenset(), "what reading the weights will say"
