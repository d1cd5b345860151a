from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.limits import set_limits
from support.refused import refused
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers

from orchestrator.data.tokenizers.token_cache import SPLIT_CUTS, WordTable
from orchestrator.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from orchestrator.data.tokenizers.vocabulary import content_hash, vocabulary_size
from orchestrator.errors import MissingDependency, UserError
from orchestrator.spec.sections.data import TokenizerSpec

UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
WORDS = ("def", "A", "é", "naïve", "东京", "12", "½", "٣", "_", "...", "€", "\U0001d518", "<|endoftext|>")
BLANKS = (" ", "  ", "\n", "\t", "\r\n", "\x0b", "\x1c", "\x85", "\u00a0", "\u3000", "\u2028")
PIECES = st.sampled_from(("'s", "'ll", "'", *WORDS, *BLANKS))
MIXED = st.lists(PIECES).map("".join)
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cafe", "##s", ",", "runs"]


def sentencepiece_model(folder: Path) -> Path:
    library = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "a dog ran", "cats and dogs"] * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = folder / "pieces.model"
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture
def gpt2(tmp_path: Path, bpe: Path) -> TokenizerSpec:
    LibraryTokenizer.from_file(str(bpe)).model.save(str(tmp_path))
    return TokenizerSpec(type="gpt2_bpe", path=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))


def spec_of(kind: str, tmp_path: Path, bpe: Path, gpt2: TokenizerSpec) -> TokenizerSpec:
    if kind == "gpt2_bpe":
        return gpt2
    if kind == "sentencepiece":
        return TokenizerSpec(type="sentencepiece", path=str(sentencepiece_model(tmp_path)))
    if kind == "wordpiece":
        (tmp_path / "vocab.txt").write_text("\n".join(WORDPIECES) + "\n")
        return TokenizerSpec(type="wordpiece", path=str(tmp_path / "vocab.txt"))
    if kind == "huggingface":
        return TokenizerSpec(type="huggingface", path=str(bpe))
    return TokenizerSpec()


@pytest.mark.parametrize("kind", ["byte_level", "huggingface", "gpt2_bpe", "wordpiece", "sentencepiece"])
def test_every_kind(kind: str, tmp_path: Path, bpe: Path, gpt2: TokenizerSpec) -> None:
    spec = spec_of(kind, tmp_path, bpe, gpt2)
    tokenizer = load_tokenizer(spec)
    if kind != "wordpiece":
        assert tokenizer.decode(tokenizer.encode("the cats ran")) == "the cats ran"
    ids = tokenizer.encode("the cats runs")
    assert ids
    assert max(ids) < tokenizer.vocab_size == vocabulary_size(spec)
    assert 0 <= tokenizer.eod < tokenizer.vocab_size
    assert tokenizer.encode_batch(["the", "cats"]) == [tokenizer.encode("the"), tokenizer.encode("cats")]
    stored = tokenizer.encode_to_bytes(["the cats runs"])[0]
    assert np.frombuffer(stored, tokenizer.dtype).tolist() == ids
    assert tokenizer.unique_identifiers["content_hash"] == content_hash(spec) == tokenizer.content_hash


@pytest.mark.parametrize("words", [WORDPIECES, [*WORDPIECES, "The"]])
def test_text_is_lower_cased_as_the_vocabulary_is_or_as_is_asked(words: list[str], tmp_path: Path) -> None:
    """Where what is asked is what the vocabulary says, it is the same tokenizer."""
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(words))
    usual = TokenizerSpec(type="wordpiece", path=str(path))
    lower, cased = (usual.model_copy(update={"lower_case": asked}) for asked in (True, False))
    known = "The" in words
    the, unknown, capital = words.index("the"), words.index("[UNK]"), len(words) - 1
    assert load_tokenizer(lower).encode("The") == [the]
    assert load_tokenizer(cased).encode("The") == [capital if known else unknown]
    same, other = (cased, lower) if known else (lower, cased)
    assert load_tokenizer(usual).encode("The") == load_tokenizer(same).encode("The")
    assert content_hash(usual) == content_hash(same) != content_hash(other)


@given(UNICODE)
def test_byte_level_round_trip(text: str) -> None:
    tokenizer = load_tokenizer(TokenizerSpec())
    ids = tokenizer.encode(text)
    assert tokenizer.decode([*ids, tokenizer.eod]) == text
    assert np.frombuffer(tokenizer.encode_to_bytes([text])[0], "<u2").tolist() == ids
    assert all(0 <= number < 256 for number in ids)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory, bpe: Path) -> dict[str, Tokenizer]:
    """One tokenizer for each way of cutting words that is known."""
    folder = tmp_path_factory.mktemp("cuts")
    description = json.loads(bpe.read_text())
    found = {"gpt2": TokenizerSpec(type="huggingface", path=str(bpe))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    for number, pattern in enumerate(SPLIT_CUTS):
        for normalizer in (None, {"type": "NFC"}):
            split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
            description["normalizer"] = normalizer
            path = folder / f"{number}{normalizer is None}.json"
            path.write_text(json.dumps(description))
            found[path.stem] = TokenizerSpec(type="huggingface", path=str(path))
    letters = [chr(code) for code in range(33, 127)]
    (folder / "vocab.txt").write_text("\n".join([*WORDPIECES, *(set(letters) - set(WORDPIECES)), "##a", "##9", "é"]))
    found["bert"] = TokenizerSpec(type="wordpiece", path=str(folder / "vocab.txt"))
    loaded = {name: load_tokenizer(spec) for name, spec in found.items()}
    assert all(tokenizer._words is not None for tokenizer in loaded.values())  # type: ignore[attr-defined]
    return loaded


class TestWords:
    """The way through the table of words gives what the library gives."""

    @staticmethod
    def check(tokenizers: dict[str, Tokenizer], text: str) -> None:
        for name, tokenizer in tokenizers.items():
            stored = tokenizer.encode_to_bytes([text])[0]
            assert np.frombuffer(stored, tokenizer.dtype).tolist() == tokenizer.encode(text), name

    @given(text=UNICODE)
    def test_any_text(self, tokenizers: dict[str, Tokenizer], text: str) -> None:
        self.check(tokenizers, text)

    @settings(max_examples=examples(300))
    @given(text=MIXED)
    def test_mixed_text(self, tokenizers: dict[str, Tokenizer], text: str) -> None:
        self.check(tokenizers, text)

    @settings(max_examples=examples(300))
    @given(text=st.text(st.sampled_from("abS 1\n\r\t'sé\u00a0\u0301,(—"), max_size=12))
    def test_short_alphabet(self, tokenizers: dict[str, Tokenizer], text: str) -> None:
        self.check(tokenizers, text)

    @pytest.mark.parametrize(
        "text", ["(a—", "é\n\n  x", "é.\n\n x", "\té", "a'\u017f", "12٣4", " (a b", "((a—", "\x0bé\r\n \n\ny"]
    )
    def test_where_cutting_is_hard(self, tokenizers: dict[str, Tokenizer], text: str) -> None:
        self.check(tokenizers, text)

    def test_own_source(self, tokenizers: dict[str, Tokenizer]) -> None:
        for path in sorted(Path(__file__).parent.glob("*.py")):
            self.check(tokenizers, path.read_text())

    def test_special_token_in_text(self, tokenizers: dict[str, Tokenizer]) -> None:
        self.check(tokenizers, "a<|endoftext|>b[SEP]")
        gpt2 = tokenizers["gpt2"]
        assert gpt2.encode_to_bytes(["<|endoftext|>"])[0] == np.array([gpt2.eod], "<u2").tobytes()

    def test_survives_pickling(self, tokenizers: dict[str, Tokenizer]) -> None:
        copies = {name: pickle.loads(pickle.dumps(tokenizer)) for name, tokenizer in tokenizers.items()}
        self.check(copies, "def naïve(): return 1")

    def test_other_cuts_are_left_to_the_library(self, tmp_path: Path, bpe: Path) -> None:
        description = json.loads(bpe.read_text())
        description["pre_tokenizer"] = {"type": "Whitespace"}
        path = tmp_path / "whitespace.json"
        path.write_text(json.dumps(description))
        tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(path)))
        stored = tokenizer.encode_to_bytes(["def main  (x)"])[0]
        assert np.frombuffer(stored, tokenizer.dtype).tolist() == tokenizer.encode("def main  (x)")
        assert tokenizer._words is None  # type: ignore[attr-defined]

    def test_table_stays_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        set_limits(monkeypatch, words_kept=3)
        table = WordTable(str.encode)
        for number in range(10):
            assert table[f"word{number}"] == f"word{number}".encode()
        assert len(table) <= 3
        assert table["x" * 100] == b"x" * 100
        assert "x" * 100 not in table


class TestEnds:
    def test_usual_name(self, bpe: Path) -> None:
        assert load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe))).eod == 0

    @pytest.mark.parametrize("value", ["def", {"content": "def", "lstrip": False}])
    def test_named_in_the_folder(self, tmp_path: Path, bpe: Path, value: object) -> None:
        (tmp_path / "tokenizer.json").write_text(bpe.read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": value, "bos_token": None}))
        folder = TokenizerSpec(type="huggingface", path=str(tmp_path))
        tokenizer = load_tokenizer(folder)
        assert [tokenizer.eod] == tokenizer.encode("def")
        assert tokenizer.bos is None
        file = TokenizerSpec(type="huggingface", path=str(tmp_path / "tokenizer.json"))
        assert load_tokenizer(file).content_hash == tokenizer.content_hash
        assert tokenizer.content_hash != load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe))).content_hash

    def test_none(self, tmp_path: Path) -> None:
        library = LibraryTokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
        library.pre_tokenizer = pre_tokenizers.Whitespace()
        library.save(str(tmp_path / "t.json"))
        tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(tmp_path / "t.json")))
        assert tokenizer.encode("a b") == [0, 1]
        with refused("no_end_of_document_token", tmp_path / "t.json"):
            _ = tokenizer.eod

    def test_truncation_and_padding_are_off(self, tmp_path: Path, bpe: Path) -> None:
        library = LibraryTokenizer.from_file(str(bpe))
        library.enable_truncation(2)
        library.enable_padding(length=9)
        library.save(str(tmp_path / "t.json"))
        tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(tmp_path / "t.json")))
        plain = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))
        assert tokenizer.encode("one two three four") == plain.encode("one two three four")


def test_wordpiece_lower_cases_unless_its_vocabulary_does_not(tmp_path: Path) -> None:
    def ids(words: list[str], text: str) -> list[int]:
        (tmp_path / "vocab.txt").write_text("\n".join(words))
        return load_tokenizer(TokenizerSpec(type="wordpiece", path=str(tmp_path / "vocab.txt"))).encode(text)

    assert ids(WORDPIECES, "The Cafés") == [5, 6, 7]
    assert ids([*WORDPIECES, "The"], "The cafes") == [10, 6, 7]
    assert ids([*WORDPIECES, "The"], "Cafes") == [1]


def test_gpt2_is_the_same_bpe(bpe: Path, gpt2: TokenizerSpec) -> None:
    text = "def main():\n    return 'naïve'  # 12<|endoftext|>"
    one, other = load_tokenizer(gpt2), load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))
    assert one.encode(text) == other.encode(text)
    assert one.eod == other.eod


def test_stored_type_follows_the_vocabulary(tmp_path: Path) -> None:
    numpy_types = []
    for size in (65499, 65500):
        (tmp_path / f"{size}.txt").write_text("\n".join(["[UNK]", "[SEP]", *(f"w{i}" for i in range(size - 2))]))
        spec = TokenizerSpec(type="wordpiece", path=str(tmp_path / f"{size}.txt"))
        numpy_types.append(load_tokenizer(spec).dtype.name)
    assert numpy_types == ["uint16", "int32"]


@pytest.mark.parametrize(
    ("kind", "content", "refusal"),
    [
        ("huggingface", None, ("missing_tokenizer", "file", "huggingface", "tokenizer.json")),
        ("huggingface", b"{", ("not_json", "file")),
        ("huggingface", b"[1]", ("not_a_json_object", "file")),
        ("huggingface", b"\xff\xfe", ("not_json", "file")),
        ("huggingface", b"[" * 100_000, ("not_json", "file")),
        ("huggingface", b'{"model": {"vocab": {"a": 0}}}', ("not_a_tokenizer_json", "file")),
        ("gpt2_bpe", b'{"a": 0}', ("missing_tokenizer_merges", "merges.txt")),
        ("wordpiece", b"a\nb\n", ("not_a_wordpiece_vocabulary", "[UNK]")),
        ("wordpiece", b"[UNK]\na\na\n", ("not_a_wordpiece_vocabulary", "file")),
        ("wordpiece", b"\xff", ("not_a_wordpiece_vocabulary", "file")),
        ("sentencepiece", b"\x0a\x05abc", ("not_a_sentencepiece_model", "file", "byte 2")),
        ("sentencepiece", b"\x12\x01a", ("not_a_sentencepiece_model", "file")),
        ("sentencepiece", b"\x0a\x01a", ("not_a_sentencepiece_model", "file")),
    ],
)
def test_wrong_files(kind: Any, content: bytes | None, refusal: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with refused(*refusal):
        load_tokenizer(TokenizerSpec(type=kind, path=str(path)))


def test_where_a_relative_path_led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = TokenizerSpec(type="gpt2_bpe", path="t/vocab.json")
    with pytest.raises(UserError) as refused:
        vocabulary_size(spec)
    assert f"t/vocab.json does not exist (looked for as {tmp_path}/t/vocab.json); gpt2_bpe" in str(refused.value)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(UserError) as refused:
        load_tokenizer(spec)
    assert f"t/merges.txt do not exist (looked for as {tmp_path}/t/merges.txt); gpt2_bpe" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        ('{"model": {"vocab": {}}}', ("not_a_tokenizer_json", "model.vocab")),
        ('{"model": {"vocab": {"a": "x"}}}', ("not_a_vocabulary", "t.json")),
        ('{"model": {"vocab": {"a": true}}}', ("not_a_vocabulary", "t.json")),
        ('{"model": 3}', ("not_a_tokenizer_json", "model.vocab")),
    ],
)
def test_wrong_vocabulary(content: str, refusal: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(content)
    with refused(*refusal):
        vocabulary_size(TokenizerSpec(type="huggingface", path=str(tmp_path / "t.json")))


def test_folder_without_a_fast_tokenizer(tmp_path: Path) -> None:
    with refused("missing_tokenizer_json", tmp_path):
        vocabulary_size(TokenizerSpec(type="huggingface", path=str(tmp_path)))


def test_path_is_needed() -> None:
    with refused("tokenizer_path_needed", "wordpiece", "vocab.txt"):
        vocabulary_size(TokenizerSpec(type="wordpiece"))


def test_added_tokens_count(tmp_path: Path, bpe: Path) -> None:
    library = LibraryTokenizer.from_file(str(bpe))
    library.add_special_tokens(["<|one|>", "<|two|>"])
    library.save(str(tmp_path / "t.json"))
    assert vocabulary_size(TokenizerSpec(type="huggingface", path=str(tmp_path / "t.json"))) == 402


def test_optional_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sentencepiece_model(tmp_path)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with refused("missing_dependency", "sentencepiece", kind=MissingDependency):
        load_tokenizer(TokenizerSpec(type="sentencepiece", path=str(path)))


def test_readers_are_light() -> None:
    names = (
        "indexed_dataset.header",
        "tokenizers.vocabulary",
        "indexed_dataset.manifest",
        "checks",
        "commands",
        "request",
    )
    imports = "; ".join(f"import orchestrator.data.{name}" for name in names)
    heavy = "{'numpy', 'torch', 'tokenizers', 'megatron', 'transformers', 'pandas'}"
    code = f"import sys; import orchestrator.cli.models.data; {imports}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
