# ruff: noqa: RUF001 - the stops of many scripts look alike
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from support.datasets import files_of
from support.refusals import after

from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.input.sentences import split_sentences
from orchestrator.data.tokenizers.encoding import LONGEST_SENTENCE
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.sections.data import TokenizerSpec

PIECES = (
    "a",
    "He",
    "Dr",
    "e.g",
    "3.14",
    "U.S",
    "1",
    ".",
    "...",
    "!",
    "?",
    "…",
    "。",
    "؟",
    '"',
    "”",
    ")",
    "(",
    "[",
    "'",
)
MIXED = st.lists(st.sampled_from((*PIECES, " ", "  ", "\n", "\n\n", "\r\n", "\u3000"))).map("".join)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n\n \t", []),
        ("No stop at the end", ["No stop at the end"]),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("A line\nthat goes on. And\none more.", ["A line\nthat goes on.", "And\none more."]),
        ("A heading\n\nIts text.\r\n\r\nmore", ["A heading", "Its text.", "more"]),
        ("Dr. Smith and Prof. Li met Mrs. Gray. They left.", ["Dr. Smith and Prof. Li met Mrs. Gray.", "They left."]),
        ("See Fig. 3, eq. 2 and Smith et al. 2020. Done.", ["See Fig. 3, eq. 2 and Smith et al. 2020.", "Done."]),
        ("J. R. R. Tolkien of the U.S. Army, e.g. Him.", ["J. R. R. Tolkien of the U.S. Army, e.g. Him."]),
        ("It costs 3.14 dollars. Version 1.2.3 is out.", ["It costs 3.14 dollars.", "Version 1.2.3 is out."]),
        ("It was 1999. Then 2000 came.", ["It was 1999.", "Then 2000 came."]),
        ("1. First item. 2. Second item.", ["1. First item.", "2. Second item."]),
        ('He said "Stop!" and left. “Why?” Nobody knew.', ['He said "Stop!" and left.', "“Why?”", "Nobody knew."]),
        ("(In brackets.) (And again.) End.", ["(In brackets.)", "(And again.)", "End."]),
        ("Wait... what? So... The end.", ["Wait... what?", "So...", "The end."]),
        ("Read example.org/a.html now. ok", ["Read example.org/a.html now. ok"]),
        ("これは文です。次は「はい。」終わり！", ["これは文です。", "次は「はい。」", "終わり！"]),
        ("¿Qué? ¡No! Él vino.", ["¿Qué?", "¡No!", "Él vino."]),
        ("Das ist z.B. Holz, bzw. Stein. Es hält.", ["Das ist z.B. Holz, bzw. Stein.", "Es hält."]),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.one_of(MIXED, st.text()))
def test_nothing_but_blanks_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@given(MIXED)
def test_a_sentence_is_one_sentence(text: str) -> None:
    assert [split_sentences(sentence) for sentence in split_sentences(text)] == [[s] for s in split_sentences(text)]


@pytest.mark.parametrize("unit", [".", ". ", ".'", "\n ", "1. ", "(. ", ". ((((", ".\u3000"])
def test_a_long_text_takes_time_in_proportion(unit: str) -> None:
    """A hundred thousand characters: what took time by their square would take minutes."""
    assert "".join("".join(split_sentences(unit * (100_000 // len(unit)))).split()) == "".join(
        (unit * (100_000 // len(unit))).split()
    )


class TestTokenize:
    TEXTS = ("One. Two is longer.\n\nThree!", "Only one", "Four? Five. Six.")

    @pytest.fixture
    def corpus(self, tmp_path: Path) -> Path:
        path = tmp_path / "corpus.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in self.TEXTS))
        return path

    @pytest.mark.parametrize("append_eod", [True, False])
    def test_bytes_are_those_of_megatron_core(
        self, tokenize: Any, corpus: Path, tmp_path: Path, append_eod: bool
    ) -> None:
        prefix = tokenize(corpus, split_sentences=True, append_eod=append_eod)
        tokenizer = load_tokenizer(TokenizerSpec())
        builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=DType.optimal_dtype(tokenizer.vocab_size))
        for text in self.TEXTS:
            ids = tokenizer.encode_batch(split_sentences(text))
            ids[-1] += [tokenizer.eod] * append_eod
            for sentence in ids:
                builder.add_item(torch.IntTensor(sentence))
            builder.end_document()
        builder.finalize(str(tmp_path / "theirs.idx"))
        assert files_of(prefix) == files_of(tmp_path / "theirs")
        header, manifest = read_index(prefix), read_manifest(prefix)
        assert manifest is not None
        assert (header.documents, header.sequences) == (manifest.documents, manifest.sentences) == (3, 7)

    def test_what_is_too_long_for_megatron_core_is_stored_in_pieces(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "long.txt").write_text("a" * (2 * LONGEST_SENTENCE + 3) + ". " + "B" * (LONGEST_SENTENCE - 1) + ".")
        prefix = tokenize(tmp_path / "long.txt", split_sentences=True, append_eod=False)
        lengths = np.fromfile(f"{prefix}.idx", dtype="<i4", count=4, offset=34)
        assert lengths.tolist() == [LONGEST_SENTENCE, LONGEST_SENTENCE, 4, LONGEST_SENTENCE]
        manifest = read_manifest(prefix)
        assert manifest is not None
        assert manifest.cut_sentences == 1

    def test_a_rerun_goes_on_from_the_last_shard(
        self, tokenize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "lines.txt").write_text(("One of many. And another" + " and more" * 30 + ".\n") * 5_000)
        options = {"split_sentences": True, "txt_documents": "line", "shard_size": 1}
        whole = files_of(tokenize(tmp_path / "lines.txt", name="whole", **options))

        with monkeypatch.context() as patch:
            after(patch, "orchestrator.data.indexed_dataset.output.PartialOutput.commit", lambda *committed: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                tokenize(tmp_path / "lines.txt", **options)
        assert 0 < (tmp_path / "data.partial" / "0.sentences").stat().st_size < 20_000
        assert files_of(tokenize(tmp_path / "lines.txt", **options)) == whole
        assert read_index(tmp_path / "data").documents == 5_000
