"""What a run reads is kept in its directory: the same for a copy of the data, and added to by a start that differs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.indexed_files import write_indexed
from support.training import tiny_job

from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.records.sources import record_sources, source_records
from orchestrator.tracking.measurements.inputs import read_inputs


@pytest.fixture
def prefixes(tmp_path: Path) -> list[str]:
    made = [str(tmp_path / name) for name in ("wiki", "code")]
    for number, prefix in enumerate(made):  # of one size, cut otherwise
        write_indexed(Path(prefix), [50 + number, 50 - number] * 10)
    return made


def records(**data: Any) -> list[dict[str, Any]]:
    job = tiny_job("sources", data={"random_tokens": False, **data}, model={"vocab_size": None})
    return list(source_records(job))


def test_the_split_and_own_sources_say_what_is_read(prefixes: list[str]) -> None:
    wiki, code = prefixes
    split = records(blend=[3, wiki, 1, code], split="90,10,0")
    assert [(each["part"], Path(each["path"]).name, each["weight"], each["share"]) for each in split] == [
        ("training", "wiki", 3.0, 0.9),
        ("training", "code", 1.0, 0.9),
        ("validation", "wiki", 3.0, 0.1),
        ("validation", "code", 1.0, 0.1),
    ]
    assert {(each["tokens"], each["documents"]) for each in split} == {(1000, 20)}
    missing = f"{wiki}-of-the-test"  # which no training reads
    own = records(blend=[wiki], validation=[code], test=[missing], split="1,0,0")
    assert [(each["part"], Path(each["path"]).name, each["share"]) for each in own] == [
        ("training", "wiki", 1.0),
        ("validation", "code", 1.0),
    ]
    assert list(source_records(tiny_job("random"))) == []


def test_the_examples_of_a_task_are_files_and_folders(tmp_path: Path) -> None:
    file, folder = tmp_path / "train.tsv", tmp_path / "race"
    file.write_text("a\tb\n")
    (folder / "high").mkdir(parents=True)
    (folder / "high" / "1.txt").write_text("{}")
    model = {"architecture": "bert", "vocab_size": None, "num_tokentypes": 2}
    task = {"name": "mnli", "train": [str(file)], "validation": [str(folder)]}
    tokenizer = {"random_tokens": False, "tokenizer": {"type": "byte_level"}}
    found = list(source_records(tiny_job("task", model=model, task=task, data=tokenizer)))
    assert [(each["part"], each["path"], each["bytes"]) for each in found] == [
        ("training", str(file), 4),
        ("validation", str(folder), 2),
    ]
    assert found[0]["digest"] != found[1]["digest"]


def test_a_digest_is_of_the_content(prefixes: list[str], tmp_path: Path) -> None:
    wiki, code = (Path(prefix) for prefix in prefixes)
    for ending in (".bin", ".idx"):
        shutil.copy(wiki.with_suffix(ending), tmp_path / f"copy{ending}")
    digests = [each["digest"] for each in records(blend=[str(wiki), str(tmp_path / "copy"), str(code)], split="1,0,0")]
    assert digests[0] == digests[1] != digests[2]


def test_each_start_adds_what_no_earlier_one_read(prefixes: list[str], tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "sources" / "0a1b2c3d")
    run.path.mkdir(parents=True)
    lease = Lease.acquire(run, launch_id="l1")
    parts = []
    for weight in (1, 1, 2):
        data = {"random_tokens": False, "blend": [weight, prefixes[0], 1, prefixes[1]], "split": "1,0,0"}
        record_sources(run, lease, tiny_job("sources", data=data, model={"vocab_size": None}))
        parts.append([each["weight"] for each in read_inputs(run)])
    assert parts == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0, 2.0]]
    run.datasets_file.write_text("{")
    assert read_inputs(run) == []
    lease.release()
