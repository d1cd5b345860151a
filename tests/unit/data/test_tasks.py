"""Examples of MNLI and RACE: what is read, what is refused, and what samples are made of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import MNLI_COLUMNS, mnli_row, write_mnli, write_race
from support.problems import codes
from support.refused import refused

from orchestrator.data.__main__ import run
from orchestrator.data.request import PrepareRequest
from orchestrator.data.tasks.checks import task_problems
from orchestrator.data.tasks.dataset import NO_LABEL, HeldOutSamples, TaskSamples, TrainingSamples, open_task
from orchestrator.data.tasks.examples import Example, cleaned
from orchestrator.data.tasks.files import read_examples
from orchestrator.data.tasks.mnli import LABELS, read_mnli
from orchestrator.data.tasks.race import OPTIONS, read_race
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.sections.task import TaskSpec

PAD, CLS, SEP = 257, 258, 259
TOKENIZER = load_tokenizer(TokenizerSpec())
HEADER = "\t".join(MNLI_COLUMNS)
TEXTS = st.text(st.characters(exclude_characters="\t\r\n\0", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def mnli(path: Path | str = "train.tsv", **more: Any) -> TaskSpec:
    return TaskSpec(name="mnli", train=[str(path)], **more)


def race(path: Path | str = "train") -> TaskSpec:
    return TaskSpec(name="race", train=[str(path)])


@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from([*LABELS, "-"])), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_any_text_of_mnli_is_read_as_it_is(
    rows: list[tuple[str, str, str]], end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("mnli") / "train.tsv"
    lines = [HEADER, *(mnli_row(number, *row) for number, row in enumerate(rows))]
    path.write_bytes("".join(line + end for line in lines).encode())
    expected = [(((a.strip(), b.strip()),), LABELS.index(label)) for a, b, label in rows if label != "-"]
    assert [(each.pairs, each.label) for each in read_mnli(path)] == expected


def test_columns_go_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "short.tsv"
    path.write_text("gold_label\tpremise\thypothesis\n\nneutral\tOne.\tTwo.\n\n", encoding="utf-8-sig")  # blank lines
    assert list(read_mnli(path)) == [Example((("One.", "Two."),), LABELS.index("neutral"))]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ":1: no column sentence1 or premise for the premise"),
        (["sentence1\tsentence2"], ":1: no column gold_label for the label"),
        ([HEADER, "a\tb"], ":2: this row has 2 columns, and the first line names 12"),
        (
            [HEADER, mnli_row(0, "a", "b", "neutral"), mnli_row(1, "a", "b", "maybe")],
            ":3: the label 'maybe' is none of",
        ),
        ([HEADER, mnli_row(0, "a", " ", "neutral")], ":2: the hypothesis is empty"),
        ([HEADER, mnli_row(0, "a", "b", "-")], ": there is no labelled example of mnli"),
    ],
)
def test_a_wrong_file_of_mnli(lines: list[str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError) as caught:
        read_examples(mnli(), [str(path)])
    assert str(caught.value).startswith(f"{path}{said}")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(f"{HEADER}\n".encode() + b"\xff\n")
    with refused("not_utf8", "train.tsv:2"):
        list(read_mnli(path))
    path.write_bytes(gzip.compress(HEADER.encode()))
    with refused("binary_file", "train.tsv:1"):
        list(read_mnli(path))
    with refused("unreadable_file", tmp_path):
        list(read_mnli(tmp_path))


RECORD: dict[str, Any] = {
    "article": "A cat sat.",
    "questions": ["Who sat?", "_ sat on _ ."],
    "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
    "answers": ["A", "D"],
}


def test_race_is_read_from_folders_in_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/10.txt", "a/readme.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**RECORD, "article": name}) + "\n\n")
    read = list(read_race(tmp_path))
    assert [example.pairs[0][1] for example in read] == ["a/10.txt"] * 2 + ["b/2.txt"] * 2
    assert [example.label for example in read] == [0, 3] * 2
    assert [pair[0] for pair in read[0].pairs] == [f"Who sat? {option}" for option in "abcd"]
    assert [pair[0] for pair in read[1].pairs] == [f"{option} sat on {option} ." for option in "efgh"]
    assert list(read_race(tmp_path / "b/2.txt")) == read[2:]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{", "this is not a JSON object on one line"),
        ("[1]", "this is not a JSON object"),
        ("[" * 100_000, "this is not a JSON object on one line"),
        ({"article": " "}, "there is no text as article"),
        ({"article": "\ud800"}, "there is no text as article"),
        ({"answers": [1, "A"]}, "questions and answers must be lists of texts"),
        ({"answers": ["A"]}, "there are 2 questions, 2 lists of options and 1 answers"),
        ({"options": [["a", "b", "c"], ["e", "f", "g", "h"]]}, "question 1 does not have 4 texts as options"),
        ({"answers": ["A", "E"]}, "the answer to question 2 is 'E', and none of A, B, C, D"),
        ({"answers": ["A", ""]}, "the answer to question 2 is ''"),
    ],
    ids=str,
)
def test_a_wrong_file_of_race(record: Any, said: str, tmp_path: Path) -> None:
    line = record if isinstance(record, str) else json.dumps({**RECORD, **record})
    (tmp_path / "1.txt").write_text(json.dumps(RECORD) + "\n" + line + "\n")
    with pytest.raises(UserError) as caught:
        list(read_race(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / '1.txt'}:2: {said}")


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(list(RECORD)), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_is_examples_or_one_message(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("race") / "1.txt"
    path.write_text(json.dumps(value))
    said, read = "", []
    try:
        read = list(read_race(path))
    except UserError as error:
        said = str(error)
    assert said == "" or said.startswith(f"{path}:1: ")
    assert all(0 <= example.label < len(example.pairs) == len(OPTIONS) for example in read)


def test_an_empty_folder(tmp_path: Path) -> None:
    with refused("no_matching_files", ".txt, .json, .jsonl"):
        list(read_race(tmp_path))


def test_what_is_not_there_is_known_without_reading(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("nothing of MNLI")
    task = mnli(tmp_path / "train.tsv", validation=[str(tmp_path), "nowhere.tsv"])
    assert codes(task_problems(task)) == ["data task.validation", "data task.validation"]
    assert task_problems(race(tmp_path)) == []


def test_stops_in_a_row_are_cleaned_as_megatron_lm_does() -> None:
    assert cleaned(" a\n . b .  . c . . . d .") == "a. b.. c. .. d ."


def test_there_is_no_data_set_to_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    sections: dict[str, Any] = {
        "name": "job",
        "model": {
            "architecture": "bert",
            "num_layers": 2,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "seq_length": 32,
        },
        "task": {"name": "mnli", "train": "nowhere.tsv"},
        "data": {},
        "batch": {"micro_batch_size": 1, "global_batch_size": 2},
        "optimizer": {"lr": 1e-3},
        "schedule": {"train_iters": 5},
    }
    path.write_text(json.dumps(sections))
    assert run("prepare", PrepareRequest(jobs=(path,)), as_json=False) == 0
    assert "nothing to make: the job names no data sets" in capsys.readouterr().out


def samples(kind: type[TaskSamples], task: TaskSpec, examples: list[Example], length: int, seed: int = 7) -> Any:
    return kind(task, examples, TOKENIZER, length, seed)


def test_a_sample_is_two_parts_between_marks() -> None:
    item = samples(TrainingSamples, mnli(), [Example((("ab  c", "d\n. e"),), 2)], 16)[0]
    ids = [CLS, *b"ab c", SEP, *b"d. e", SEP]
    assert item["text"].tolist() == [[*ids, *[PAD] * 5]]
    assert item["types"].tolist() == [[0] * 6 + [1] * 5 + [0] * 5]
    assert item["padding_mask"].tolist() == [[1] * 11 + [0] * 5]
    assert item["label"] == 2


@given(st.text(max_size=40), st.text(max_size=40), st.integers(8, 32))
def test_what_is_too_long_loses_its_end(first: str, second: str, length: int) -> None:
    item = samples(TrainingSamples, mnli(), [Example(((first, second),), 0)], length)[0]
    [a, b] = TOKENIZER.encode_batch([cleaned(first), cleaned(second)])
    whole = [CLS, *a, SEP, *b]
    used = int(item["padding_mask"].sum())
    assert used == min(len(whole) + 1, length)
    assert item["text"][0, : used - 1].tolist() == whole[: used - 1]
    assert item["text"][0, used - 1] == SEP
    assert set(item["text"][0, used:].tolist()) <= {PAD}
    assert item["types"][0].tolist() == [int(len(a) + 2 <= place < used) for place in range(length)]


def test_a_question_leaves_room_for_the_article() -> None:
    """A question of RACE has 128 tokens at most, and it is the article that loses its end."""
    pairs = tuple(("q" * 200 + option, "x" * 500) for option in OPTIONS)
    item = samples(TrainingSamples, race(), [Example(pairs, 1)], 256)[0]
    assert item["text"].shape == item["types"].shape == item["padding_mask"].shape == (4, 256)
    expected = [CLS, *b"q" * 128, SEP, *b"x" * 125, SEP]
    assert item["text"].tolist() == [expected] * 4
    assert item["types"][0].tolist() == [0] * 130 + [1] * 126


def test_each_epoch_has_an_order_of_its_own_and_holds_everything() -> None:
    examples = [Example(((str(number), "x"),), 0) for number in range(20)]

    def order(seed: int, epoch: int) -> list[str]:
        found = samples(TrainingSamples, mnli(), examples, 8, seed)
        rows = [found[20 * epoch + place]["text"][0] for place in range(20)]
        return [bytes(token for token in row[1:].tolist() if token < 256).decode() for row in rows]

    orders = [order(7, epoch) for epoch in range(3)]
    assert [sorted(each) for each in orders] == [sorted(orders[0])] * 3
    assert len({tuple(each) for each in orders}) == 3
    assert order(7, 1) == orders[1]
    assert order(8, 0) == orders[1], "the seed of epoch 1"
    jumped = samples(TrainingSamples, mnli(), examples, 8)
    assert np.array_equal(jumped[47]["text"], samples(TrainingSamples, mnli(), examples, 8)[47]["text"])


def test_what_fills_up_the_last_batch_has_no_label() -> None:
    examples = [Example(((str(number), "x"),), number % 3) for number in range(5)]
    held_out = samples(HeldOutSamples, mnli(), examples, 8)
    assert sorted(held_out[place]["label"] for place in range(5)) == [0, 0, 1, 1, 2]
    assert [held_out[place]["label"] for place in range(5, 8)] == [NO_LABEL] * 3
    assert len(held_out) == 5


def test_sets_for_validation_come_together_and_one_by_one(tmp_path: Path) -> None:
    write_race(tmp_path / "train", 3)
    folders = [str(write_race(tmp_path / "dev" / name, count)) for name, count in (("middle", 2), ("high", 1))]
    task = TaskSpec(name="race", train=[str(tmp_path / "train")], validation=folders)
    found = open_task(task, TOKENIZER, 16, seed=1, evaluates=True)
    assert {name: len(each) for name, each in found.validation.items()} == {"blend": 6, "middle": 4, "high": 2}  # type: ignore[arg-type]
    assert open_task(task, TOKENIZER, 16, seed=1, evaluates=False).validation == {}


def test_rows_without_agreement_do_not_count(tmp_path: Path) -> None:
    assert len(read_examples(mnli(), [str(write_mnli(tmp_path / "dev.tsv", 12))])) == 12
