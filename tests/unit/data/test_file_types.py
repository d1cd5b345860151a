"""What is read of a folder, what is named as left out, and files that are not what their names say."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.refused import refused

from orchestrator.data.__main__ import run
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.input.sources import find_inputs
from orchestrator.data.inspection import first_documents
from orchestrator.data.request import CHAT_GLOBS, ShowRequest, TextRequest, TrainTokenizerRequest
from orchestrator.data.tasks.race import race_files

Tokenize = Callable[..., Path]
LINE = b'{"text": "hello"}\n'
COMPRESSED = {
    ".gz": gzip.compress(LINE),
    ".bz2": bz2.compress(LINE),
    ".xz": lzma.compress(LINE),
    ".zst": zstandard.compress(LINE),
}


def a_zip() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("a.jsonl", LINE)
    return written.getvalue()


def a_tar() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        member = tarfile.TarInfo("a.jsonl")
        member.size = len(LINE)
        archive.addfile(member, io.BytesIO(LINE))
    return written.getvalue()


NO_TEXT = {
    "zip": (a_zip(), "a zip archive"),
    "empty zip": (b"PK\x05\x06" + bytes(18), "a zip archive"),
    "tar": (a_tar(), "a tar archive"),
    "tar in gzip": (gzip.compress(a_tar()), "a tar archive"),
    "lzma": (lzma.compress(LINE, lzma.FORMAT_ALONE), "lzma"),
    "utf-16": (LINE.decode().encode("utf-16"), "UTF-16"),
    "arrow": (b"ARROW1\0\0" + bytes(9), "an Arrow file"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    (root / "below").mkdir(parents=True)
    for name in ("UP.TXT", "B.Md"):
        (root / name).write_text(name)
    (root / "UP.JSONL.GZ").write_bytes(COMPRESSED[".gz"])
    for name in ("a.zip", "b.ZIP", "below/c.zip", "below/d.zip", "e.tar.gz", "f.csv.xz", "g.arrow", "h.lzma", "i.gz"):
        (root / name).write_bytes(b"")
    for name in ("a.png", "Makefile", "v1.5"):
        (root / name).write_bytes(b"")
    return root


LEFT_OUT = {
    "*.arrow": "g.arrow;",
    "*.csv.xz": "f.csv.xz;",
    "*.gz": "i.gz;",
    "*.lzma": "h.lzma; they cannot be read",
    "*.tar.gz": "e.tar.gz; they cannot be read",
    "*.zip": "a.zip, b.ZIP, below/c.zip and 1 more; they cannot be read",
}


def test_names_in_capitals_are_read_and_other_data_are_named(folder: Path, tokenize: Tokenize, capfd: Any) -> None:
    prefix = tokenize(folder, append_eod=False)
    assert sorted(first_documents(ShowRequest(prefix, 9))) == ["B.Md", "UP.TXT", "hello"]
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert [each.path for each in manifest.left_out] == [str(folder / kind) for kind in LEFT_OUT]
    for each, reason in zip(manifest.left_out, LEFT_OUT.values(), strict=True):
        assert each.reason.startswith(reason)
    said = capfd.readouterr().err
    assert said.count("left out: ") == len(LEFT_OUT)
    request = TrainTokenizerRequest((folder,), output=prefix.with_name("t.json"))
    assert run("train-tokenizer", request, as_json=False) == 0
    assert capfd.readouterr().err.count("left out: ") == len(LEFT_OUT)


def test_conversations_in_a_folder(folder: Path) -> None:
    (folder / "CHATS.JSON").write_bytes(LINE)
    found = find_inputs(TextRequest((folder,)), CHAT_GLOBS)
    assert [file.path.name for file in found.files] == ["CHATS.JSON", "UP.JSONL.GZ"]
    assert [each.path.name for each in found.left_out] == list(LEFT_OUT)


def test_what_nobody_asked_for_is_not_named(folder: Path) -> None:
    found = find_inputs(TextRequest((folder,), globs=("*.TXT",)))
    assert ([file.path.name for file in found.files], found.left_out) == (["UP.TXT"], [])
    found = find_inputs(TextRequest((folder,), excludes=("*.zip", "*.ZIP", "below", "*.gz", "*.xz", "g.*", "h.*")))
    assert found.left_out == []


def test_folders_of_race_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "1.TXT").write_text("{}")
    assert race_files(tmp_path) == [tmp_path / "1.TXT"]


@pytest.mark.parametrize("name", ["data", "data.jsonl"])
@pytest.mark.parametrize("ending", COMPRESSED)
def test_what_is_compressed_is_told_by_its_first_bytes(
    tokenize: Tokenize, tmp_path: Path, name: str, ending: str
) -> None:
    path = tmp_path / name
    path.write_bytes(COMPRESSED[ending])
    expected = "hello" if name.endswith(".jsonl") else LINE.decode()
    assert list(first_documents(ShowRequest(tokenize(path, append_eod=False, name="out"), 1))) == [expected]


@pytest.mark.parametrize("name", ["data", "data.jsonl", "data.txt"])
@pytest.mark.parametrize("kind", NO_TEXT)
def test_what_is_no_text_is_told_by_its_first_bytes(tokenize: Tokenize, tmp_path: Path, name: str, kind: str) -> None:
    content, what = NO_TEXT[kind]
    path, good = tmp_path / name, tmp_path / "good.jsonl"
    path.write_bytes(content)
    good.write_bytes(LINE)
    with refused("wrong_record", f"{name}: ", what) as caught:
        tokenize(path, name="out")
    assert "Fix it" not in str(caught.value)
    manifest = read_manifest(tokenize(path, good, name="out", on_error="skip"))
    assert manifest is not None
    assert (manifest.documents, manifest.skipped_records) == (1, 1)


def test_text_that_begins_like_a_compressed_file(tokenize: Tokenize, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("BZh9 is how bzip2 begins")
    assert list(first_documents(ShowRequest(tokenize(path, append_eod=False), 1))) == [path.read_text()]
