from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import os
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from support.datasets import files_of
from support.depth import examples
from support.refusals import refuse
from support.refused import refused

from orchestrator.data.__main__ import run
from orchestrator.data.indexed_dataset.header import bin_path, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.indexed_dataset.output import skipped_path
from orchestrator.data.input.sources import Position, find_inputs, read_chunks
from orchestrator.data.request import TokenizeRequest
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import OrchestratorError, UserError
from orchestrator.spec.sections.data import TokenizerSpec


def texts_of(prefix: Path) -> list[str]:
    """The documents, read by megatron-core and decoded as bytes."""
    dataset = IndexedDataset(str(prefix))
    tokenizer = load_tokenizer(TokenizerSpec())
    return [tokenizer.decode(dataset[i].tolist()) for i in range(len(dataset))]


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """About 3 MB of JSON lines: two chunks and a shard for each of three workers."""
    path = tmp_path_factory.mktemp("big") / "big.jsonl"
    content = corpus.read_bytes()
    path.write_bytes(content * (3_200_000 // len(content)))
    return path


class TestOutput:
    @pytest.mark.parametrize("kind", ["byte_level", "huggingface"])
    @pytest.mark.parametrize("append_eod", [True, False])
    def test_bytes_are_those_of_megatron_core(
        self, tokenize: Any, corpus: Path, bpe: Path, tmp_path: Path, kind: str, append_eod: bool
    ) -> None:
        path = str(bpe) if kind == "huggingface" else None
        prefix = tokenize(corpus, tokenizer_type=kind, tokenizer_path=path, append_eod=append_eod)
        tokenizer = load_tokenizer(TokenizerSpec(type=kind, path=path))  # type: ignore[arg-type]
        dtype = DType.optimal_dtype(tokenizer.vocab_size)
        builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
        for line in corpus.read_text().splitlines():
            ids = tokenizer.encode(json.loads(line)["text"])
            builder.add_item(torch.IntTensor(ids + [tokenizer.eod] * append_eod))
            builder.end_document()
        builder.finalize(str(tmp_path / "theirs.idx"))
        assert files_of(prefix) == files_of(tmp_path / "theirs")

    def test_large_vocabulary_is_stored_as_int32(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "[SEP]", *(f"w{i}" for i in range(70_000))]))
        (tmp_path / "a.txt").write_text("w69999 w0")
        prefix = tokenize(tmp_path / "a.txt", tokenizer_type="wordpiece", tokenizer_path=str(tmp_path / "vocab.txt"))
        assert read_index(prefix).dtype == "int32"
        dataset = IndexedDataset(str(prefix))  # must outlive its items, which are views into its memory map
        assert dataset[0].tolist() == [70_001, 2, 1]

    def test_many_documents_cross_the_blocks_of_the_index(self, tokenize: Any, tmp_path: Path) -> None:
        count = 300_000
        (tmp_path / "lines.txt").write_text("".join(f"{i}\n" for i in range(count)))
        prefix = tokenize(tmp_path / "lines.txt", txt_documents="line", append_eod=False)
        dataset = IndexedDataset(str(prefix))
        assert len(dataset) == count
        for i in (0, 262_143, 262_144, 262_145, count - 1):
            assert bytes(dataset[i].tolist()).decode() == str(i)
        assert np.array_equal(dataset.document_indices, np.arange(count + 1))

    def test_workers_do_not_change_the_bytes(self, tokenize: Any, big: Path, bpe: Path) -> None:
        options = {"tokenizer_type": "huggingface", "tokenizer_path": str(bpe)}
        one = tokenize(big, name="one", workers=1, **options)
        three = tokenize(big, name="three", workers=3, shard_size=1, **options)
        assert files_of(one) == files_of(three)

    def test_manifest(self, tokenize: Any, corpus: Path, bpe: Path) -> None:
        prefix = tokenize(corpus, tokenizer_type="huggingface", tokenizer_path=str(bpe))
        manifest = read_manifest(prefix)
        assert manifest is not None
        header = read_index(prefix)
        assert (manifest.documents, manifest.tokens) == (header.documents, header.tokens) == (300, header.tokens)
        assert manifest.tokenizer == TokenizerSpec(type="huggingface", path=str(bpe))
        assert manifest.largest_token_id == int(np.fromfile(bin_path(prefix), "<u2").max())
        assert [(source.path, source.bytes) for source in manifest.sources] == [(str(corpus), corpus.stat().st_size)]
        assert manifest.text_bytes == corpus.stat().st_size
        assert manifest.options["append_eod"] is True

    def test_several_keys(self, tokenize: Any, corpus: Path, tmp_path: Path) -> None:
        tokenize(corpus, json_keys=("text", "title"))
        assert texts_of(tmp_path / "data_title")[:2] == ["Title 0", "Title 1"]
        assert len(texts_of(tmp_path / "data_text")) == 300
        assert not idx_path(tmp_path / "data").exists()

    def test_only_the_data_set_is_left(self, tokenize: Any, corpus: Path, tmp_path: Path) -> None:
        tokenize(corpus)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data.bin", "data.idx", "data.manifest.json"]


class TestInputs:
    def test_directory_of_sources(self, tokenize: Any, tmp_path: Path) -> None:
        root = tmp_path / "tree"
        for name in ("b.py", "a/z.py", "a/y.md", "test/t.py", ".git/x.py", "a/__pycache__/c.py", "data.bin", "e.py"):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name if name != "e.py" else "")
        prefix = tokenize(root, excludes=("test",))
        assert texts_of(prefix) == ["a/y.md", "a/z.py", "b.py"]
        manifest = read_manifest(prefix)
        assert manifest is not None
        assert (manifest.empty_documents, len(manifest.sources)) == (1, 4)
        assert texts_of(tokenize(root, name="py", globs=("*.py",), excludes=("a/*",))) == ["b.py", "test/t.py"]

    @pytest.mark.parametrize("ending", ["jsonl", "json", "jsonl.gz", "jsonl.bz2", "jsonl.xz", "jsonl.zst"])
    def test_json_lines(self, tokenize: Any, tmp_path: Path, ending: str) -> None:
        texts = [f"text {i} é" for i in range(50)]
        plain = write_lines(tmp_path / "plain", texts).read_bytes()
        path = tmp_path / f"x.{ending}"
        between = b"\0" * 8 if ending.endswith("xz") else b""  # as the format allows
        path.write_bytes(packed(ending, plain[:100]) + between + packed(ending, plain[100:]) + between)
        assert texts_of(tokenize(path)) == texts

    def test_parquet(self, tokenize: Any, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        texts = [f"row {i}" for i in range(1000)]
        table = {"n": list(range(1000)), "text": texts, "raw": [b"x"] * 1000, "day": [date(2026, 11, 27)] * 1000}
        parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet")
        assert texts_of(tokenize(tmp_path / "x.parquet")) == texts
        with refused("missing_column", "x.parquet", "body", "n, text, raw, day"):
            tokenize(tmp_path / "x.parquet", name="b", json_keys=("body",))
        for key, kind in {"n": "a number", "raw": "binary data", "day": "a value of another kind"}.items():
            with refused("wrong_record", "x.parquet:1", f"'{key}'", kind):
                tokenize(tmp_path / "x.parquet", name="n", json_keys=(key,))
        os.truncate(tmp_path / "x.parquet", 300)
        with refused("not_a_parquet_file", "x.parquet"):
            tokenize(tmp_path / "x.parquet", name="torn")

    @pytest.mark.parametrize(
        ("unit", "expected"),
        [
            ("file", ["one\ntwo\n\n\nthree\n \nfour\n"]),
            ("line", ["one", "two", "three", "four"]),
            ("paragraph", ["one\ntwo", "three", "four"]),
        ],
    )
    def test_txt(self, tokenize: Any, tmp_path: Path, unit: str, expected: list[str]) -> None:
        (tmp_path / "x.txt").write_text("one\ntwo\n\n\nthree\n \nfour\n")
        assert texts_of(tokenize(tmp_path / "x.txt", txt_documents=unit)) == expected

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(50))
    @given(paragraphs=st.lists(st.text("ab\n ", min_size=1, max_size=6), max_size=20), size=st.integers(1, 30))
    def test_paragraphs_do_not_depend_on_chunks(self, tmp_path: Path, paragraphs: list[str], size: int) -> None:
        (tmp_path / "x.txt").write_text("\n\n".join(paragraphs))
        request = TokenizeRequest(inputs=(tmp_path / "x.txt",), txt_documents="paragraph")
        assert all_documents(request, size) == all_documents(request, 10_000)

    @pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.bz2", "jsonl.xz", "jsonl.zst", "txt", "parquet"])
    def test_reading_goes_on_from_any_position(self, tmp_path: Path, ending: str) -> None:
        path = tmp_path / f"x.{ending}"
        texts = [f"text {i}" for i in range(700)]
        plain = write_lines(tmp_path / "plain", texts).read_bytes()
        path.write_bytes(packed(ending, plain))
        if ending == "parquet":
            pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            parquet.write_table(pyarrow.table({"text": texts}), path)
        request = TokenizeRequest(inputs=(path, path), txt_documents="line")
        files = find_inputs(request).files
        chunks = list(read_chunks(files, ("text",), chunk_bytes=1500))
        assert len(chunks) > 4
        for done, chunk in enumerate(chunks, 1):
            rest = list(read_chunks(files, ("text",), chunk.end, chunk_bytes=1500))
            assert [part.blocks for part in rest] == [part.blocks for part in chunks[done:]]
        assert chunks[-1].disk_bytes == sum(file.bytes for file in files)


def all_documents(request: TokenizeRequest, chunk_bytes: int) -> list[object]:
    from orchestrator.data.input.documents import read_documents

    chunks = read_chunks(find_inputs(request).files, request.json_keys, Position(), chunk_bytes)
    return [d for chunk in chunks for block in chunk.blocks for d in read_documents(block, request.json_keys)]


def packed(ending: str, content: bytes) -> bytes:
    """As people's programs do."""
    for name, library in {"gz": gzip, "bz2": bz2, "xz": lzma}.items():
        if ending.endswith(name):
            made: bytes = library.compress(content)
            return made
    if not ending.endswith("zst"):
        return content
    checked: bytes = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(content)
    return checked


class TestWrongInput:
    LINES = b'{"text": "good"}\n\n{"text": "bad}\n{"text": "more"}\n'

    def test_line_number_of_what_is_malformed(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_bytes(self.LINES)
        with refused("wrong_record", "x.jsonl:3", "--on-error skip"):
            tokenize(tmp_path / "x.jsonl")
        assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]

    def test_skip_counts_and_reports(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_bytes(self.LINES)
        prefix = tokenize(tmp_path / "x.jsonl", on_error="skip")
        assert texts_of(prefix) == ["good", "more"]
        report = [json.loads(line) for line in skipped_path(prefix).read_text().splitlines()]
        assert [(Path(entry["path"]).name, entry["line"]) for entry in report] == [("x.jsonl", 3)]
        assert report[0]["reason"].startswith("not valid JSON")
        manifest = read_manifest(prefix)
        assert manifest is not None
        assert (manifest.skipped_records, manifest.skipped_report) == (1, str(skipped_path(prefix)))

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"[1]", "not a JSON object but a list"),
            (b'{"body": "x"}', "no field 'text'; fields: body"),
            (b'{"text": null}', "field 'text' is not text but null"),
            (b'{"text": 1}', "field 'text' is not text but a number"),
            (b'{"text": "\xff"}', "not UTF-8: byte 0xff at 10"),
            (b'{"text": "\\ud800"}', "not valid Unicode: half of a surrogate pair"),
            (b"[" * 200_000, "nested too deeply"),
            (b'"x"', "not a JSON object but text"),
            (b'{"text": ' + b"1" * 5000 + b"}", "a number in it has more than 4300 digits"),
        ],
    )
    def test_reasons(self, tokenize: Any, tmp_path: Path, line: bytes, reason: str) -> None:
        (tmp_path / "x.jsonl").write_bytes(b'{"text": "x"}\n' + line + b"\n")
        with pytest.raises(UserError, match=f"x.jsonl:2: .*{reason}"):
            tokenize(tmp_path / "x.jsonl")

    def test_a_list_among_lines_is_left_out_as_ever(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text('[1]\n{"text": "x"}\n')
        assert read_index(tokenize(tmp_path / "x.jsonl", on_error="skip")).documents == 1

    def test_source_file_that_is_not_utf8(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "x.py").write_bytes(b"# caf\xe9")
        with refused("wrong_record", "x.py", "0xe9 at 5"):
            tokenize(tmp_path / "x.py")

    @pytest.mark.parametrize("content", [b"", b"\n\n", b'{"text": ""}\n'])
    def test_nothing_to_tokenize(self, tokenize: Any, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.jsonl").write_bytes(content)
        with refused("no_text", "'text'", "0 skipped"):
            tokenize(tmp_path / "x.jsonl")
        assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]

    def test_empty_documents_are_left_out(self, tokenize: Any, tmp_path: Path) -> None:
        prefix = tokenize(write_lines(tmp_path / "x.jsonl", ["a", "", "b"]))
        assert texts_of(prefix) == ["a", "b"]

    def test_plain_text_has_no_fields(self, tokenize: Any, corpus: Path, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("plain")
        with refused("plain_text_has_no_fields", "a.txt", "--json-key text --json-key title"):
            tokenize(corpus, tmp_path / "a.txt", json_keys=("text", "title"))
        assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]

    def test_missing_input(self, tokenize: Any, tmp_path: Path) -> None:
        with refused("missing_input", "gone"):
            tokenize(tmp_path / "gone")
        (tmp_path / "bare").mkdir()
        with refused("no_matching_files", "bare", "*.rs"):
            tokenize(tmp_path / "bare", globs=("*.rs",))

    @pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst"])
    def test_cut_off_compression(self, tokenize: Any, tmp_path: Path, ending: str) -> None:
        path = tmp_path / f"x.jsonl.{ending}"
        plain = write_lines(tmp_path / "plain", [os.urandom(30).hex() for _ in range(500)]).read_bytes()
        content = packed(ending, plain)
        path.write_bytes(content[: len(content) // 2])
        with refused("damaged_input", f"x.jsonl.{ending}"):
            tokenize(path)
        path.write_bytes(b"not compressed at all")
        with refused("damaged_input", f"x.jsonl.{ending}"):
            tokenize(path)
        path.write_bytes(content[:50] + b"\0" * 50 + content[100:])
        with refused("damaged_input", f"x.jsonl.{ending}"):
            tokenize(path)
        path.write_bytes(content + b"and what is no more of it")
        with refused("damaged_input", f"x.jsonl.{ending}"):
            tokenize(path)

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(60))
    @given(
        lines=st.lists(
            st.one_of(
                st.binary(max_size=30),
                st.recursive(st.none() | st.text() | st.integers(), lambda x: st.dictionaries(st.text(), x)).map(
                    lambda value: json.dumps(value).encode()
                ),
                st.text().map(lambda text: json.dumps({"text": text}).encode()),
            ),
            max_size=8,
        ),
        on_error=st.sampled_from(["fail", "skip"]),
    )
    def test_no_line_gives_a_traceback(self, tmp_path: Path, lines: list[bytes], on_error: Any) -> None:
        (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
        request = TokenizeRequest(
            inputs=(tmp_path / "x.jsonl",), output_prefix=tmp_path / "out", workers=1, on_error=on_error, overwrite=True
        )
        failure = None
        try:
            run("tokenize", request, as_json=False)
        except OrchestratorError as error:
            failure = error
        if failure is None:
            read_index(tmp_path / "out")
        else:
            assert failure.exit_code == 2
            assert on_error == "fail" or "has no text" in str(failure)


def test_file_system_without_locks(tokenize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "fcntl.flock", errno.ENOSYS)
    assert texts_of(tokenize(write_lines(tmp_path / "a.jsonl", ["x"]))) == ["x"]


class TestExistingOutput:
    def test_refused_unless_overwritten(self, tokenize: Any, tmp_path: Path) -> None:
        first = tokenize(write_lines(tmp_path / "a.jsonl", ["first"]))
        other = write_lines(tmp_path / "b.jsonl", ["second"])
        with refused("output_exists", "data.idx", "--overwrite"):
            tokenize(other)
        assert texts_of(first) == ["first"]
        assert texts_of(tokenize(other, overwrite=True)) == ["second"]

    def test_old_skipped_report_goes(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_bytes(TestWrongInput.LINES)
        prefix = tokenize(tmp_path / "x.jsonl", on_error="skip")
        tokenize(write_lines(tmp_path / "y.jsonl", ["fine"]), overwrite=True)
        assert not skipped_path(prefix).exists()

    def test_prefix_that_is_a_folder(self, program: Any, tmp_path: Path) -> None:
        write_lines(tmp_path / "a.jsonl", ["x"])
        result = program("tokenize", "a.jsonl", "--output-prefix", tmp_path)
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: --output-prefix {tmp_path} is a folder")

    def test_folder_that_cannot_be_made(self, program: Any, tmp_path: Path) -> None:
        write_lines(tmp_path / "a.jsonl", ["x"])
        result = program("tokenize", "a.jsonl", "--output-prefix", "a.jsonl/out")
        assert result.returncode == 2
        assert "Not a directory" in result.stderr
