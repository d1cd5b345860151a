"""Samples of T5: spans move from the encoder's input to the decoder's, and what cannot give samples is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.built_datasets import datasets_of
from support.refused import refused
from tokenizers import Tokenizer, models

from orchestrator.data.families.t5 import SpanTokens
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import DataError
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec, TokenizerSpec

EOD, BEGIN, FIRST_SENTINEL = 256, 257, 261
LENGTH, SAMPLES = 64, 200


def t5(decoder_length: int = 32) -> ModelSpec:
    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "seq_length": LENGTH}
    return ModelSpec.model_validate({"architecture": "t5", "decoder_seq_length": decoder_length, **sizes})


def build(data: DataSpec, cache: Path, model: ModelSpec | None = None) -> Any:
    return datasets_of(data, model or t5(), cache, SAMPLES).train


@pytest.fixture
def text(tmp_path: Path) -> Path:
    documents = (
        " ".join(f"Sentence {sentence} of document {document} has words." for sentence in range(9))
        for document in range(20)
    )
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    return path


def spec_of(prefix: Path, sentinels: int = 20) -> DataSpec:
    tokenizer = {"vocab_extra_ids": sentinels}
    return DataSpec.model_validate({"blend": [{"path": str(prefix)}], "split": "1,0,0", "tokenizer": tokenizer})


def spans_of(tokens: list[int]) -> dict[int, list[int]]:
    """Sentinel -> what stands behind it."""
    spans: dict[int, list[int]] = {}
    for token in tokens:
        if token >= FIRST_SENTINEL:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    return spans


def whole(item: dict[str, Any]) -> bytes:
    """A sample's text: the decoder's spans put back in the place of their sentinels."""
    encoded = item["text_enc"][item["enc_mask"] == 1].tolist()
    decoded = item["text_dec"][item["dec_mask"] == 1].tolist()
    assert decoded[0] == BEGIN
    spans = spans_of(decoded[1:])
    assert list(spans) == list(range(FIRST_SENTINEL, FIRST_SENTINEL + len(spans))), "sentinels come in order"
    return bytes(byte for token in encoded for byte in spans.get(token, [token]))


@pytest.mark.usefixtures("process_group")
class TestSamples:
    def test_spans_put_back_give_the_text(self, tokenize: Any, text: Path, tmp_path: Path) -> None:
        data = spec_of(tokenize(text, split_sentences=True, append_eod=False))
        dataset = build(data, tmp_path / "cache")
        documents = [json.loads(line)["text"].replace(" ", "") for line in text.read_text().splitlines()]
        masked = tokens = 0
        for number in range(SAMPLES):
            item = dataset[number]
            found = whole(item).decode()
            assert any(found.replace(" ", "") in document for document in documents), found
            counted = int(item["loss_mask"].sum())
            decoded = item["text_dec"][1:counted].tolist()
            assert item["labels"][:counted].tolist() == [*decoded, EOD], "the decoder's input, one further, and an end"
            assert not item["loss_mask"][counted:].any()
            masked, tokens = masked + sum(map(len, spans_of(decoded).values())), tokens + len(found)
        assert 0.13 < masked / tokens < 0.17
        again = build(data, tmp_path / "cache")
        assert all(np.array_equal(value, dataset[7][name]) for name, value in again[7].items())

    @pytest.mark.parametrize(("sentinels", "decoder_length"), [(1, 32), (20, 13)])
    def test_spans_without_a_sentinel_or_room_stay(
        self, tokenize: Any, text: Path, tmp_path: Path, sentinels: int, decoder_length: int
    ) -> None:
        """megatron-core's own data set would end the training there."""
        data = spec_of(tokenize(text, split_sentences=True, append_eod=False), sentinels)
        dataset = build(data, tmp_path / "cache", t5(decoder_length))
        spans = []
        for number in range(SAMPLES):
            item = dataset[number]
            assert whole(item)
            assert int(item["loss_mask"].sum()) <= decoder_length
            spans.append(int((item["text_enc"] >= FIRST_SENTINEL).sum()))
        assert max(spans) == 1 if sentinels == 1 else 1 < max(spans) < 9

    def test_a_tokenizer_without_sentinels_is_refused(self, tokenize: Any, text: Path, tmp_path: Path) -> None:
        data = spec_of(tokenize(text, split_sentences=True, append_eod=False), sentinels=0)
        with refused("no_sentinel_tokens", "vocab_extra_ids: 100"):
            build(data, tmp_path / "cache")

    def test_sentencepiece_with_sentinels_of_its_own(self, tokenize: Any, text: Path, tmp_path: Path) -> None:
        """Spans of pieces: which of them begin a word only WordPiece says in a way that megatron-core reads."""
        library = pytest.importorskip("sentencepiece")
        sentinels = [f"<extra_id_{number}>" for number in range(20)]
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(json.loads(line)["text"] for line in text.read_text().splitlines()),
            model_prefix=str(tmp_path / "pieces"),
            vocab_size=70,
            hard_vocab_limit=False,
            pad_id=3,
            user_defined_symbols=sentinels,
            minloglevel=2,
        )
        path = str(tmp_path / "pieces.model")
        options = {"tokenizer_type": "sentencepiece", "tokenizer_path": path}
        prefix = tokenize(text, split_sentences=True, append_eod=False, **options)
        spec = {"type": "sentencepiece", "path": path}
        dataset = build(
            DataSpec.model_validate({"blend": [{"path": str(prefix)}], "split": "1,0,0", "tokenizer": spec}),
            tmp_path / "cache",
        )
        processor = library.SentencePieceProcessor(model_file=path)
        own = [processor.piece_to_id(sentinel) for sentinel in sentinels]
        documents = [json.loads(line)["text"] for line in text.read_text().splitlines()]
        taken = 0
        for number in range(50):
            item = dataset[number]
            encoded = item["text_enc"][item["enc_mask"] == 1].tolist()
            decoded = item["text_dec"][item["dec_mask"] == 1].tolist()[1:]
            spans: dict[int, list[int]] = {}
            for token in decoded:
                if token in own:
                    spans[token] = []
                else:
                    spans[list(spans)[-1]].append(token)
            assert list(spans) == own[: len(spans)]
            whole = processor.decode([token for each in encoded for token in spans.get(each, [each])])
            assert any(whole in document for document in documents), whole
            taken += len(spans)
        assert taken > 50

    def test_a_part_that_gives_no_sample_is_refused(self, tokenize: Any, tmp_path: Path) -> None:
        """Not looked for without end."""
        path = tmp_path / "one.jsonl"
        path.write_text(json.dumps({"text": "One sentence. And another."}) + "\n")
        data = spec_of(tokenize(path, split_sentences=True, append_eod=False))
        with refused("data_does_not_fit_job", "train part", "1 documents", "1,9,0", kind=DataError):
            build(data.model_copy(update={"split": "1,9,0"}), tmp_path / "cache")


def test_sentinels_of_the_tokenizer_itself(tmp_path: Path) -> None:
    words = {"a": 0, "<extra_id_1>": 1, "<extra_id_0>": 2, "</s>": 3}
    library = Tokenizer(models.WordLevel(words, unk_token="a"))
    library.save(str(tmp_path / "tokenizer.json"))
    spec = TokenizerSpec(type="huggingface", path=str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(spec).additional_special_tokens_ids == [2, 1]
    more = load_tokenizer(spec.model_copy(update={"vocab_extra_ids": 3}))
    assert more.additional_special_tokens_ids == [4, 5, 6]
    assert more.vocab_size == 7


@pytest.mark.parametrize(
    ("more", "begin", "end", "first"),
    [
        ([], 2, 3, 8),
        # What Megatron-LM's legacy tokenizer says of the vocabulary without these two, which it adds.
        (["[BOS]", "[EOS]"], 8, 9, 10),
        (["[EOS]"], 2, 3, 9),
    ],
)
def test_begin_and_end_of_wordpiece(more: list[str], begin: int, end: int, first: int, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, *more]))
    spec = TokenizerSpec(type="wordpiece", path=str(tmp_path / "vocab.txt"), vocab_extra_ids=3)
    tokens = SpanTokens(load_tokenizer(spec))
    assert (tokens.bos, tokens.eos, tokens.cls, tokens.sep) == (begin, end, 2, 3)
    assert tokens.additional_special_tokens_ids == [first, first + 1, first + 2]
