"""Vocabulary size and padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.problems import codes, problems_of

from orchestrator.data.tokenizers.vocabulary import UNREADABLE_TOKENIZER
from orchestrator.planning.vocabulary import Vocabulary, padded_vocab_size, vocabulary
from orchestrator.spec.loading import load_text


@pytest.mark.parametrize(
    ("size", "divisible_by", "tp", "padded"),
    [(50261, 128, 2, 50432), (50261, 128, 1, 50304), (128, 128, 1, 128), (129, 128, 1, 256), (1, 1, 1, 1)],
)
def test_padding(size: int, divisible_by: int, tp: int, padded: int) -> None:
    assert padded_vocab_size(size, divisible_by, tp) == padded


def test_the_tokenizers_size_is_the_default(make_job: Any) -> None:
    job = make_job(model={"vocab_size": None}, data={"random_tokens": False, "blend": ["a"]})
    assert vocabulary(job) == Vocabulary(size=261, padded_size=384, tokenizer_size=261)


@pytest.mark.parametrize(("preset", "size"), [("gpt-tiny", 261), ("gpt2", 50257)])
def test_random_tokens_are_of_the_models_vocabulary(preset: str, size: int) -> None:
    job = load_text(
        f"name: random\nmodel: {{preset: {preset}}}\nbatch: {{}}\ndata: {{random_tokens: true}}\n"
        "optimizer: {lr: 1e-3}\nschedule: {train_iters: 1}\n"
    ).job
    assert vocabulary(job).size == size


def test_a_written_size_may_be_larger(make_job: Any) -> None:
    job = make_job(model={"vocab_size": 300}, data={"random_tokens": False, "blend": ["a"]})
    assert vocabulary(job) == Vocabulary(size=300, padded_size=384, tokenizer_size=261)


def test_a_written_size_below_the_tokenizers_is_refused(make_job: Any) -> None:
    job = make_job(model={"vocab_size": 256}, data={"random_tokens": False, "blend": ["a"]})
    assert codes(problems_of(lambda: vocabulary(job))) == ["vocabulary_too_small model.vocab_size"]


@pytest.mark.parametrize("tokens", ["[UNK] [PAD] [CLS] [SEP]", "[UNK] a"])
def test_a_bert_needs_its_tokens(make_job: Any, tmp_path: Path, tokens: str) -> None:
    (tmp_path / "vocab.txt").write_text(tokens.replace(" ", "\n"))
    tokenizer = {"type": "wordpiece", "path": str(tmp_path / "vocab.txt")}
    data = {"random_tokens": False, "blend": ["a"], "tokenizer": tokenizer}
    found = problems_of(lambda: vocabulary(make_job(model={"architecture": "bert"}, data=data)))
    assert codes(found) == ["missing_tokens data.tokenizer.path"]
    assert vocabulary(make_job(data=data)).tokenizer_size == len(tokens.split())
    (tmp_path / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]")
    assert vocabulary(make_job(model={"architecture": "bert"}, data=data)).tokenizer_size == 5


def test_random_tokens_need_no_tokenizer(make_job: Any) -> None:
    assert vocabulary(make_job(model={"vocab_size": 100})).tokenizer_size is None


def test_a_tokenizer_that_is_not_here(make_job: Any, tmp_path: Path) -> None:
    data = {
        "random_tokens": False,
        "blend": ["a"],
        "tokenizer": {"type": "wordpiece", "path": str(tmp_path / "vocab.txt")},
    }
    assert vocabulary(make_job(data=data)).size == 300
    [problem] = problems_of(lambda: vocabulary(make_job(model={"vocab_size": None}, data=data)))
    assert (problem.code, problem.paths) == (UNREADABLE_TOKENIZER, ("data.tokenizer", "model.vocab_size"))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    assert vocabulary(make_job(data=data)).tokenizer_size == 6
