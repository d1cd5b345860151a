"""From files to sequences that are scored; what is wrong with a file is said with its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.refused import refused
from support.training import tiny_job
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, normalizers

from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.evaluation.base import Score, ScoredTokens, TaskContext
from orchestrator.evaluation.tasks.registry import make_task
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, Kind
from orchestrator.spec.sections.data import TokenizerSpec

JOB = tiny_job(
    "job",
    model={"vocab_size": 261, "seq_length": 16, "position_embedding_type": "learned_absolute"},
    data={"random_tokens": True, "tokenizer": {"type": "byte_level"}},
)


def task(kind: Kind, path: Path, **options: Any) -> Any:
    given = {"add_bos": False, "seq_length": 16, "overlapping_eval": None, "strict": True, **options}
    return make_task(
        EvaluationRequest(kind, "name", str(path), given), TaskContext(JOB, load_tokenizer(JOB.data.tokenizer))
    )


class Uniform:
    """A network for which all bytes are alike, but for one that is the likeliest."""

    def __init__(self, likeliest: str = "") -> None:
        self.likeliest = likeliest.encode()
        self.seen: list[ScoredTokens] = []

    def scores(self, part: str, sequences: Sequence[ScoredTokens]) -> list[Score]:
        self.seen = list(sequences)
        targets = [bytes(one.tokens[one.first :]) for one in sequences]
        return [Score(-len(target) * math.log(256), target == self.likeliest) for target in targets]


@pytest.mark.parametrize("stride", [None, 1, 5, 16])
def test_perplexity_of_a_text_is_by_token_by_word_and_by_byte(tmp_path: Path, stride: int | None) -> None:
    path = tmp_path / "text"
    path.write_text("to be or not to be, that is the question")
    found = task("text", path, overlapping_eval=stride).measure(Uniform())
    assert found.counts == {"windows": found.counts["windows"], "tokens": 39, "words": 10, "bytes": 40}
    assert next(iter(found.metrics)) == "perplexity"
    assert found.metrics["perplexity"].value == pytest.approx(256)
    assert found.metrics["loss"].value == pytest.approx(math.log(256))
    assert found.metrics["bits_per_byte"].value == pytest.approx(8 * 39 / 40)
    assert found.metrics["word_perplexity"].value == pytest.approx(256 ** (39 / 9))


def test_wikitext_is_counted_as_written_and_scored_detokenised(tmp_path: Path) -> None:
    path = tmp_path / "wiki.test.tokens"
    path.write_text(" = Title = \n \n A well @-@ known word . \n")
    found = task("wikitext", path).measure(Uniform())
    assert next(iter(found.metrics)) == "word_perplexity"
    assert (found.counts["words"], found.counts["bytes"]) == (11, len(" = Title =\n\nA well-known word.\n"))


def test_windows_fit_the_positions_with_a_first_token(tmp_path: Path) -> None:
    """A window reads as many tokens as it is long; the last of it is scored and not read."""
    path = tmp_path / "text"
    path.write_text("x" * 50)
    network = Uniform()
    task("text", path).measure(network)
    assert [len(one.tokens) for one in network.seen] == [17, 17, 17, 2]
    with refused("no_begin_token", "--add-bos"):
        task("text", path, add_bos=True)


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", ("empty_file",)),
        (b" \n ", ("empty_file",)),
        (b"a", ("too_few_tokens", "1 tokens")),
        (b"PK\x03\x04\xff", ("binary_file", "zip")),
        (b"\x1f\x8b\x08", ("binary_file", "compressed")),
        (b"ab\xff", ("not_utf8", "byte 2")),
    ],
)
def test_a_text_that_cannot_be_scored_is_named(tmp_path: Path, content: bytes, refusal: tuple[str, ...]) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with refused(*refusal, path):
        task("text", path)


def test_lambada_takes_the_whole_last_word_or_the_last_token(tmp_path: Path) -> None:
    path = tmp_path / "lambada.jsonl"
    path.write_text('{"text": "a cat sat"}\n\n{"text": "the hat "}\n')
    network = Uniform(" sat")
    found = task("lambada", path).measure(network)
    assert [(bytes(one.tokens).decode(), one.first) for one in network.seen] == [("a cat sat", 5), ("the hat", 3)]
    assert found.metrics["accuracy"].value == 0.5
    assert found.metrics["accuracy"].stderr == pytest.approx(0.5)
    assert found.metrics["perplexity"].value == pytest.approx(256**4)
    assert found.counts == {"passages": 2, "right": 1}

    network = Uniform("t")
    found = task("lambada", path, strict=False).measure(network)
    assert [(bytes(one.tokens).decode(), one.first) for one in network.seen] == [("a cat sat", 8), ("the hat ", 7)]
    assert found.metrics["last_token_accuracy"].value == 0.5


def test_the_last_word_has_one_space_before_it_where_a_tokenizer_begins_with_one(tmp_path: Path) -> None:
    """As SentencePiece does: a word by itself, after a space of its own, would be other tokens."""
    words = ["<unk>", "_", "_a", "_cat", "_sat"]
    library = LibraryTokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=0))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(tmp_path / "tokenizer.json")))
    assert tokenizer.encode(" sat") == [1, 4]
    path = tmp_path / "lambada.jsonl"
    path.write_text('{"text": "a cat sat"}')
    made = make_task(
        EvaluationRequest("lambada", "name", str(path), {"strict": True, "add_bos": False}), TaskContext(JOB, tokenizer)
    )
    network = Uniform()
    made.measure(network)  # type: ignore[arg-type]  # it is never asked as a BERT
    assert network.seen == [ScoredTokens([2, 3, 4], 2)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "2: this is not a JSON object on one line"),
        ('["a b"]', "2: there is no text under 'text'"),
        ('{"txt": "a b"}', "2: there is no text under 'text'"),
        ('{"text": " "}', "2: there is no text under 'text'"),
        ('{"text": "word"}', "2: nothing precedes the last word"),
        (
            '{"text": "much longer than it may be"}',
            "2: the passage has 25 tokens, but the model has learned 16 positions",
        ),
    ],
)
def test_a_passage_that_cannot_be_scored_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "lambada.jsonl"
    path.write_text('{"text": "a cat sat"}\n' + line + "\n")
    with pytest.raises(UserError) as error:
        task("lambada", path)
    assert f"{path}:{said}" in str(error.value)
    path.write_text("\n")
    with refused("no_passages", "lambada.jsonl"):
        task("lambada", path)
