"""`orchestrator init`: answers that name files, and what is offered to take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.answering import TOKENIZER, Person
from support.indexed_files import write_indexed

from orchestrator.cli.jobs.job_files.job_text import job_text
from orchestrator.cli.jobs.job_files.questionnaire import QUESTIONS, ask, spec_values
from orchestrator.data.source_survey import survey_job
from orchestrator.spec.loading import load_text
from orchestrator.spec.presets import preset_names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, text and tokenizers of several kinds, some of them damaged, to which names are relative."""
    monkeypatch.chdir(tmp_path)
    write_indexed(tmp_path / "whole", [200, 300])
    (tmp_path / "torn.idx").write_bytes(b"MMIDIDX\x00\x00")
    (tmp_path / "torn.bin").write_bytes(b"")
    (tmp_path / "half.bin").write_bytes(b"")
    for folder in ("books/deep", "empty", "pictures", "sets", "llama"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "books/deep/one.txt").write_text("a text\n")
    (tmp_path / "pictures/one.png").write_bytes(b"PNG")
    write_indexed(tmp_path / "sets/mine", [200])
    (tmp_path / "web.jsonl").write_text('{"text": "a text"}\n')
    (tmp_path / "llama/tokenizer.json").write_text(TOKENIZER)
    (tmp_path / "damaged.json").write_text('{"added_tokens": [')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    return tmp_path


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("200", "200 does not exist here"),
        ("whole later", "later does not exist here"),
        ("torn", "torn"),
        ("half", "half.idx does not exist"),
        ("whole.idx", "without the ending: whole"),
        ("empty", "holds no text"),
        ("pictures", "holds no text"),
        ("sets", "name them, sets/mine"),
        ("books books", "named twice"),
        ("~/data", "~/data"),
    ],
)
def test_data_that_is_not_here_is_refused_at_the_question(here: Path, answer: str, said: str) -> None:
    person = Person(data__blend=[answer, "whole"])
    answers = ask(person.read, person.tell, {})
    assert [said in reason for reason in person.told] == [True]
    assert answers["data.blend"] == [{"path": "whole", "weight": 1.0}]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("1e-3", "1e-3 does not exist here"),
        ("damaged.json", "damaged.json"),
        ("books", "not recognised as a tokenizer"),
        ("web.jsonl", "not recognised as a tokenizer"),
        ("vocab.json", "merges"),
    ],
)
def test_a_tokenizer_that_is_none_is_refused_at_the_question(here: Path, answer: str, said: str) -> None:
    person = Person(data__blend=["whole"], data__tokenizer__path=[answer, "llama"])
    answers = ask(person.read, person.tell, {})
    assert [said in reason for reason in person.told] == [True], person.told
    assert load_text(job_text(spec_values(answers))).job.data.tokenizer.path == "llama"


@pytest.mark.parametrize(
    ("answer", "kind"), [("vocab.txt", "wordpiece"), ("vocab.json", "gpt2_bpe"), ("bytes", "byte_level")]
)
def test_tokenizers_of_other_kinds(here: Path, answer: str, kind: str) -> None:
    (here / "merges.txt").write_text("#version: 0.2\n")
    person = Person(data__blend=["whole"], data__tokenizer__path=[answer])
    tokenizer = load_text(job_text(spec_values(ask(person.read, person.tell, {})))).job.data.tokenizer
    assert (person.told, tokenizer.type) == ([], kind)
    assert tokenizer.merges == ("merges.txt" if kind == "gpt2_bpe" else None)


def test_text_is_taken_and_made_into_data(here: Path) -> None:
    """A folder of it and a file of it, beside data that is there."""
    person = Person(data__blend=["books web.jsonl whole"])
    job = load_text(job_text(spec_values(ask(person.read, person.tell, {})))).job
    assert person.told == []
    assert job.data.blend is not None
    found = [(entry.path, entry.text) for entry in job.data.blend]
    assert found == [("data/books", ["books"]), ("data/web", ["web.jsonl"]), ("whole", None)]
    assert [source.is_to_be_made for source in survey_job(job)] == [True, True, False], "made before the training"


def test_presets_are_listed_at_the_question() -> None:
    text = next(question.text for question in QUESTIONS if question.path == "model.preset")
    assert {*re.findall(r"[a-z][a-z0-9.-]+", text)} >= {*preset_names()}
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("preset", preset_names())
def test_the_global_batch_is_one_that_models_are_trained_with(preset: str) -> None:
    """Half a million tokens or 512 sequences, whatever the layout; 16 sequences of what a laptop trains."""
    layouts: list[dict[str, int]] = [{}, {"launch.nodes": 2, "launch.gpus_per_node": 8}]
    if load_text(job_text(spec_values({"model.preset": preset}))).job.model.num_layers % 2 == 0:
        layouts.append({"launch.gpus_per_node": 8, "parallelism.pipeline_model_parallel_size": 2})
    for layout in layouts:
        job = load_text(job_text(spec_values({"model.preset": preset, **layout}))).job
        if preset.endswith("-tiny"):
            assert 16 <= job.global_batch_size <= 256
        else:
            assert job.global_batch_size == min(512, 2**19 // job.model.seq_length)
