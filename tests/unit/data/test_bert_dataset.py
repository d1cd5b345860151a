"""Samples of BERT: what is masked, what the two parts are, and that they are megatron-core's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset
from support.built_datasets import datasets_of
from support.refused import refused

from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.missing_datasets import prepare
from orchestrator.data.samples.index_statistics import measured
from orchestrator.data.source_survey import survey
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec, TokenizerSpec

PAD, CLS, SEP, MASK = 257, 258, 259, 260
DOCUMENTS, LENGTH, SAMPLES = 26, 64, 400


def bert(**fields: Any) -> ModelSpec:
    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "seq_length": LENGTH}
    return ModelSpec(architecture="bert", **{**sizes, **fields})


def build(data: DataSpec, cache: Path, model: ModelSpec | None = None) -> Any:
    return datasets_of(data, model or bert(), cache, SAMPLES).train


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A document for each letter: sentences of 3 to 19 times that letter and a full stop."""
    documents = (
        " ".join(chr(ord("A") + document) * (3 + (document + sentence) % 17) + "." for sentence in range(12))
        for document in range(DOCUMENTS)
    )
    path = tmp_path / "letters.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    return path


@pytest.fixture
def letters(tokenize: Any, text: Path) -> DataSpec:
    prefix = tokenize(text, split_sentences=True, append_eod=False)
    return DataSpec(blend=[{"path": str(prefix)}], split="1,0,0")


def letter_of(tokens: np.ndarray[Any, Any]) -> set[str]:
    """The letters among tokens that are no full stops."""
    return {chr(token) for token in tokens.tolist() if ord("A") <= token <= ord("Z")}


def original(item: dict[str, Any]) -> np.ndarray[Any, Any]:
    """A sample's tokens before masking."""
    return np.where(item["loss_mask"] == 1, item["labels"], item["text"])


@pytest.mark.usefixtures("process_group")
class TestSamples:
    @pytest.mark.parametrize("order", ["sentence_order", "next_sentence"])
    def test_what_they_are_made_of(self, letters: DataSpec, order: str, tmp_path: Path) -> None:
        dataset = build(letters.model_copy(update={"bert_order": order}), tmp_path / "cache")
        masked = tokens = 0
        replaced = {"mask": 0, "other": 0, "same": 0}
        apart = randoms = 0
        for number in range(SAMPLES):
            item = dataset[number]
            randoms += int(item["is_random"])
            assert {name: value.shape for name, value in item.items() if name != "is_random"} == dict.fromkeys(
                ("text", "types", "labels", "padding_mask", "loss_mask"), (LENGTH,)
            )
            size = int(item["padding_mask"].sum())
            whole, types = original(item), item["types"]
            assert item["padding_mask"].tolist() == [1] * size + [0] * (LENGTH - size)
            assert (whole[size:] == PAD).all()
            first_sep, last_sep = np.flatnonzero(whole == SEP).tolist()
            assert (whole[0], last_sep) == (CLS, size - 1)
            assert types.tolist() == [0] * (first_sep + 1) + [1] * (last_sep - first_sep) + [0] * (LENGTH - size)
            assert not item["loss_mask"][[0, first_sep, last_sep]].any()
            assert not item["labels"][item["loss_mask"] == 0].any()
            parts = whole[1:first_sep], whole[first_sep + 1 : last_sep]
            assert all(len(part) for part in parts)
            one, other = (letter_of(part) for part in parts)
            assert len(one) == len(other) == 1 or 0 in (len(one), len(other))
            if order == "sentence_order" or not item["is_random"]:
                assert len(one | other) <= 1, "both are of one document"
            apart += len(one | other) == 2
            asked = item["loss_mask"] == 1
            masked, tokens = masked + int(asked.sum()), tokens + size
            hidden = item["text"][asked]
            replaced["mask"] += int((hidden == MASK).sum())
            replaced["same"] += int((hidden == whole[asked]).sum())
            replaced["other"] += int(((hidden != MASK) & (hidden != whole[asked])).sum())
        assert 0.4 < randoms / SAMPLES < 0.6
        assert apart == 0 if order == "sentence_order" else 0.85 * randoms < apart <= randoms
        assert 0.14 < masked / tokens < 0.16
        shares = {name: count / masked for name, count in replaced.items()}
        assert shares == pytest.approx({"mask": 0.8, "other": 0.1, "same": 0.1}, abs=0.03)
        again = build(letters.model_copy(update={"bert_order": order}), tmp_path / "cache")
        for name, value in again[7].items():
            assert np.array_equal(value, dataset[7][name]), name

    def test_they_are_those_of_megatron_core(self, tokenize: Any, text: Path, tmp_path: Path) -> None:
        """For [PAD] = 0 and whole words of several pieces."""
        letters = [chr(ord("a") + number) for number in range(DOCUMENTS)]
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *letters, *(f"##{letter}" for letter in letters)]
        (tmp_path / "vocab.txt").write_text("\n".join(words))
        tokenizer = {"type": "wordpiece", "path": str(tmp_path / "vocab.txt")}
        prefix = tokenize(
            text, split_sentences=True, append_eod=False, tokenizer_type="wordpiece", tokenizer_path=tokenizer["path"]
        )
        dataset = build(DataSpec(blend=[{"path": str(prefix)}], split="1,0,0", tokenizer=tokenizer), tmp_path / "cache")
        ours = [dataset[number] for number in range(100)]
        dataset._pad_token_id = 0
        same = 0
        for number, item in enumerate(ours):
            theirs = BERTMaskedWordPieceDataset.__getitem__(dataset, number)
            if (theirs["padding_mask"] != item["padding_mask"]).any():
                continue  # a token was replaced by [PAD], which megatron-core takes for the end
            theirs["labels"] *= theirs["loss_mask"]  # -1 elsewhere
            same += 1
            assert all(np.array_equal(theirs[name], value) for name, value in item.items()), number
        assert same > 90

    def test_without_a_binary_head_a_sentence_is_enough(self, letters: DataSpec, tmp_path: Path) -> None:
        dataset = build(letters, tmp_path / "cache", bert(bert_binary_head=False))
        item = dataset[0]
        assert not item["types"].any()
        assert (original(item) == SEP).sum() == 1

    def test_what_the_index_holds(self, letters: DataSpec, tmp_path: Path) -> None:
        dataset = build(letters.model_copy(update={"short_seq_prob": 0.0}), tmp_path / "cache")
        [source] = measured(dataset, SAMPLES, LENGTH)
        assert source.samples_built == len(dataset) >= SAMPLES
        assert source.samples_built % source.epochs_built == 0, "all epochs are alike where no sample is shortened"
        assert len({tuple(row) for row in dataset.sample_index.tolist()}) == source.samples_built // source.epochs_built
        assert source.documents == DOCUMENTS
        assert source.tokens_held == read_index(Path(source.path)).tokens

    def test_a_tokenizer_without_the_tokens_is_refused(
        self, tokenize: Any, text: Path, bpe: Path, tmp_path: Path
    ) -> None:
        tokenizer = {"type": "huggingface", "path": str(bpe)}
        options = {"tokenizer_type": "huggingface", "tokenizer_path": str(bpe)}
        prefix = tokenize(text, split_sentences=True, append_eod=False, **options)
        with refused("no_masked_lm_token", "[PAD]"):
            build(DataSpec(blend=[{"path": str(prefix)}], split="1,0,0", tokenizer=tokenizer), tmp_path / "cache")


def test_the_tokens_of_the_byte_level_tokenizer() -> None:
    tokenizer = load_tokenizer(TokenizerSpec())
    assert (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (PAD, CLS, SEP, MASK)
    assert tokenizer.inv_vocab[MASK] == "[MASK]"
    assert list(tokenizer.inv_vocab) == list(range(tokenizer.vocab_size))
    assert tokenizer.decode([CLS, *tokenizer.encode("a"), SEP]) == "a"


class TestPreparation:
    def test_sentences_are_made_where_the_model_reads_them(self, text: Path, tmp_path: Path) -> None:
        data = DataSpec(blend=[{"path": str(tmp_path / "made"), "text": str(text)}])
        prepare(data, 1, lambda line: None, sentences=True)
        manifest = read_manifest(tmp_path / "made")
        assert manifest is not None
        assert (manifest.documents, manifest.sentences) == (DOCUMENTS, 12 * DOCUMENTS)
        assert manifest.largest_token_id < 256, "no end of document"
        assert survey(data, sentences=True)[0].trouble is None

    @pytest.mark.parametrize("sentences", [True, False])
    def test_data_of_the_other_kind_are_refused(self, tokenize: Any, text: Path, sentences: bool) -> None:
        prefix = tokenize(text, split_sentences=not sentences)
        [source] = survey(DataSpec(blend=[{"path": str(prefix)}]), sentences=sentences)
        assert source.is_unfit
        assert f"reads {'sentences' if sentences else 'documents'}" in (source.trouble or "")
