"""The data sets that a job lacks, made from the text that its spec names."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.datasets import files_of
from support.event_log import lines_of
from support.refused import refused

from orchestrator.cli.main import main
from orchestrator.data.indexed_dataset.header import bin_path, idx_path, partial_path, read_index
from orchestrator.data.indexed_dataset.locking import locked
from orchestrator.data.indexed_dataset.output import Progress
from orchestrator.data.missing_datasets import prepare, tokenize_request
from orchestrator.data.progress import Display
from orchestrator.data.source_survey import Source, data_problems, survey
from orchestrator.data.tokenization import tokenize
from orchestrator.errors import DataIsHeld, UserError
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved, load_job
from orchestrator.spec.sections.data import DataSpec

JOB = """\
name: tiny
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
batch: {micro_batch_size: 1, global_batch_size: 2}
optimizer: {lr: 1e-3}
schedule: {train_iters: 20}
data:
  blend:
    - {path: data/books, text: raw/books.jsonl}
"""
ONE: dict[str, Any] = {"blend": [{"path": "data/books", "text": "raw/books.jsonl"}]}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with text and a job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw" / "more").mkdir(parents=True)
    lines = [json.dumps({"text": f"Book {number}.", "title": f"T{number}"}) for number in range(9)]
    (tmp_path / "raw" / "books.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "raw" / "more" / "a.txt").write_text("one file")
    (tmp_path / "raw" / "more" / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "another"}\n{"text": "third"}\n'))
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def spec(**data: Any) -> DataSpec:
    return DataSpec.model_validate(data)


def made(data: DataSpec) -> list[str]:
    """What is made, by its path."""
    return [source.entry.path for source, _ in prepare(data, 1, lambda line: None)]


def troubles(data: DataSpec, **asked: bool) -> list[str]:
    return [f"{source.place}: {source.trouble}" for source in survey(data, **asked) if source.trouble]


def test_every_part_of_a_job_gets_what_it_lacks_once(project: Path) -> None:
    data = spec(
        blend=[
            {"path": "data/books", "text": "raw/books.jsonl"},
            {"path": "data/titles", "text": ["raw/books.jsonl"], "json_key": "title", "append_eod": False},
        ],
        validation=[{"path": "data/both", "text": ["raw/more", "raw/books.jsonl"]}, {"path": "./data/books"}],
        test=[{"path": "data/both", "text": ["raw/more", "raw/books.jsonl"]}],
    )
    assert made(data) == ["data/books", "data/titles", "data/both"]
    books, titles, both = (read_index(project / "data" / name) for name in ("books", "titles", "both"))
    assert (books.documents, books.tokens) == (9, 9 * len("Book 0.") + 9)
    assert (titles.documents, titles.tokens) == (9, 9 * 2)
    assert both.documents == 9 + 3

    before = {path: path.stat().st_mtime_ns for path in (project / "data").iterdir()}
    assert made(data) == []
    assert {path: path.stat().st_mtime_ns for path in (project / "data").iterdir()} == before


def test_the_same_bytes_as_tokenize(project: Path) -> None:
    made(spec(**ONE))
    assert main(["data", "tokenize", "raw/books.jsonl", "--output-prefix", "other/books", "--append-eod"]) == 0
    assert bin_path(Path("data/books")).read_bytes() == bin_path(Path("other/books")).read_bytes()
    assert idx_path(Path("data/books")).read_bytes() == idx_path(Path("other/books")).read_bytes()


def test_what_is_missing_and_cannot_be_made_is_told_at_once_and_nothing_is_made(project: Path) -> None:
    (project / "data").mkdir()
    (project / "data" / "half.bin").write_bytes(b"\0\0")
    data = spec(
        blend=[
            {"path": "data/books", "text": "raw/books.jsonl"},
            {"path": "data/a", "text": ["raw/books.jsonl", "raw/gone.jsonl", "raw/lost"]},
        ],
        validation=[{"path": "data/v"}],
        test=[{"path": "data/half", "text": "raw/books.jsonl"}],
    )
    assert troubles(data) == [
        "data.blend[1]: no indexed data set at data/a, nor the text to make it from: raw/gone.jsonl, raw/lost",
        f"data.validation[0]: no indexed data set at data/v: data/v.idx does not exist in {project}, from where "
        "relative paths lead. `orchestrator data tokenize` makes one from text, or say what it is made from "
        "(text: FILE)",
        "data.test[0]: data/half.bin exists without data/half.idx: copy its index next to it, or remove it to make "
        "both from text",
    ]
    with pytest.raises(UserError) as caught:
        made(data)
    assert str(caught.value).split("\n       ") == troubles(data)
    assert not idx_path(Path("data/books")).exists()


@pytest.mark.parametrize(
    ("job", "text", "places"),
    [
        ({"tokenizer": {"type": "huggingface", "path": "nowhere"}}, "raw/books.jsonl", ["data.tokenizer.path"]),
        ({"chat": {"template": "nowhere.jinja"}}, "raw/books.jsonl", ["data.blend[0]"]),
        ({}, "raw/gone.jsonl", ["data.blend[0]", "data.blend[1]"]),
    ],
)
def test_what_is_wrong_with_the_job_is_told_once_and_not_of_each_data_set(
    job: dict[str, Any], text: str, places: list[str]
) -> None:
    data = spec(blend=[{"path": path, "text": text} for path in ("data/a", "data/b")], **job)
    found = survey(data)
    assert [source.place for source in found if source.trouble] == ["data.blend[0]", "data.blend[1]"]
    assert [problem.paths[0] for problem in data_problems(data, found, needed=True)] == places
    assert data_problems(data, found, needed=False) == []


@pytest.mark.parametrize("index", [b"", b"no index", b"MMIDIDX\0\0\1"])
def test_what_is_no_index_is_unfit_wherever_it_is_seen(project: Path, index: bytes) -> None:
    (project / "data").mkdir()
    (project / "data" / "a.idx").write_bytes(index)
    assert not survey(spec(blend=["data/a"]))[0].is_unfit, "half of it is here: it may be on its way"
    (project / "data" / "a.bin").write_bytes(b"\0\0")
    data = spec(blend=["data/a"])
    [problem] = data_problems(data, survey(data), needed=False)
    assert problem.paths[0] == "data.blend[0]"
    assert "data/a.idx is" in problem.message


def test_never_is_for_the_start_of_a_training_and_not_for_who_asks() -> None:
    data = spec(**ONE, prepare="never")
    [trouble] = troubles(data)
    assert "data.prepare is never: `orchestrator data prepare JOB.yaml` makes it" in trouble
    assert troubles(data, asked=True) == []
    assert made(data) == ["data/books"]
    assert troubles(data) == []


def test_data_of_another_tokenizer_is_refused(project: Path) -> None:
    made(spec(**ONE))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "book"]
    (project / "vocab.txt").write_text("\n".join(words) + "\n")
    data = spec(**ONE, tokenizer={"type": "wordpiece", "path": "vocab.txt"})
    [trouble] = troubles(data)
    assert "data/books was made with another tokenizer (byte_level, hash " in trouble
    with refused("data_set_cannot_be_made", "data.blend[0]", "byte_level", "data.tokenizer", "hash"):
        made(data)
    Path("data/books.manifest.json").write_text("{")
    assert "is damaged or not a manifest" in troubles(data)[0]


def test_data_is_made_with_the_case_that_the_job_says(project: Path) -> None:
    (project / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "book"]))
    data = spec(**ONE, tokenizer={"type": "wordpiece", "path": "vocab.txt", "lower_case": False})
    made(data)
    assert troubles(data) == []
    usual = data.model_copy(update={"tokenizer": data.tokenizer.model_copy(update={"lower_case": None})})
    [trouble] = troubles(usual)
    assert "made with another tokenizer (wordpiece " in trouble
    assert "vocab.txt, lower_case: false, hash " in trouble


def test_a_tokenizer_that_is_not_there_matters_where_something_is_made() -> None:
    tokenizer = {"type": "wordpiece", "path": "gone.txt"}
    assert "tokenizer gone.txt does not exist" in troubles(spec(**ONE, tokenizer=tokenizer))[0]
    made(spec(**ONE))
    assert troubles(spec(**ONE, tokenizer=tokenizer)) == []


def start(said: list[str], data: DataSpec) -> threading.Thread:
    thread = threading.Thread(target=prepare, args=(data, 1, said.append))
    thread.start()
    deadline = time.monotonic() + 60
    while len(said) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert said == [
        "data/books: made from raw/books.jsonl",
        "data/books: another process is making it; waiting for it",
    ]
    return thread


def test_waits_for_another_process_and_goes_on_if_that_gave_up() -> None:
    said: list[str] = []
    with locked(partial_path(Path("data/books")), wait=False):
        thread = start(said, spec(**ONE))
    thread.join(60)
    assert len(said) == 2
    assert read_index(Path("data/books")).documents == 9


def test_waits_for_another_process_and_takes_what_that_has_made() -> None:
    said: list[str] = []
    made(spec(blend=[{"path": "other", "text": "raw/books.jsonl"}]))
    with locked(partial_path(Path("data/books")), wait=False):
        thread = start(said, spec(**ONE))
        shutil.copy("other.bin", "data/books.bin")
        shutil.copy("other.idx", "data/books.idx")
        shutil.rmtree("data/books.partial")  # as who is done does it
    thread.join(60)
    assert said[2:] == ["data/books: another process has made it"]
    assert not partial_path(Path("data/books")).exists()


def test_two_programs_at_once(project: Path) -> None:
    (project / "raw" / "books.jsonl").write_bytes((project / "raw" / "books.jsonl").read_bytes() * 20_000)
    command = [sys.executable, "-m", "orchestrator.data", "prepare", "job.yaml", "--workers", "1"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("wrote data/books: 180000 documents" in out for out, _ in said) == 1
    assert read_index(Path("data/books")).documents == 180_000


class KilledError(BaseException):
    """Stands for the end of the process."""


class Killing(Display):
    """A display that ends the process after the first finished shard."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._commits = folder / "commits.jsonl"

    def update(self, progress: Progress) -> None:
        if self._commits.exists():
            raise KilledError


def test_goes_on_from_the_last_finished_shard(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "raw" / "books.jsonl").write_bytes((project / "raw" / "books.jsonl").read_bytes() * 4000)
    data = spec(**ONE)
    [source] = survey(data)
    request = replace(tokenize_request(source, data, 1), shard_size=1)
    with pytest.raises(KilledError):
        tokenize(request, Killing(partial_path(Path("data/books"))))
    assert survey(data)[0].is_to_be_made
    assert made(data) == ["data/books"]
    assert "continuing from the last finished shard" in capfd.readouterr().err
    interrupted = files_of(Path("data/books"))
    tokenize(replace(request, output_prefix=Path("data/whole")), Display())
    assert interrupted == files_of(Path("data/whole"))


@pytest.fixture
def run_dir(project: Path) -> RunDir:
    """A run directory of the job."""
    run = RunDir(project / "runs" / "tiny" / "0123abcd")
    run.path.mkdir(parents=True)
    (run.path / "resolved.json").write_text(dump_resolved(load_job([project / "job.yaml"]).job))
    return run


def test_a_run_directory_hears_how_it_went(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    Path("raw/books.jsonl").rename("raw/away")
    tells = {"command": ["sh", "-c", 'echo "$ORCHESTRATOR_STATE $ORCHESTRATOR_CAUSE: $ORCHESTRATOR_MESSAGE" >told']}
    resolved = json.loads((run_dir.path / "resolved.json").read_text())
    (run_dir.path / "resolved.json").write_text(json.dumps({**resolved, "notifications": tells}))
    assert main(["data", "prepare", str(run_dir.path)]) == 2
    assert Path("told").read_text().startswith("failed data: data.blend[0]: no indexed data set at data/books, nor the")
    assert "error: data.blend[0]: no indexed data set at data/books, nor the text" in capfd.readouterr().err
    Path("raw/away").rename("raw/books.jsonl")
    assert main(["data", "prepare", str(run_dir.path)]) == 0
    failed, notified, prepared = lines_of(run_dir)
    assert (notified["event"], notified["occasion"], notified["told"]) == ("notified", "failed", ["command"])
    assert (failed["event"], failed["job_id"]) == ("data_failed", "11")
    assert failed["message"].startswith("data.blend[0]: no indexed data set at data/books, nor the text")
    assert (prepared["event"], prepared["job_id"], prepared["made"]) == ("data_prepared", "11", ["data/books"])


def test_as_a_command(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "job.yaml", "--set", "data.blend=[{path: x, text: raw/more}]"]) == 0
    said = capfd.readouterr()
    assert said.out == "wrote x: 3 documents, 23 tokens (bytes, as uint16)\n"
    assert said.err.startswith("x: made from raw/more\n")
    assert main(["data", "prepare", "job.yaml", "--json"]) == 0
    [dataset] = json.loads(capfd.readouterr().out)["datasets"]
    assert (dataset["prefix"], dataset["documents"]) == ("data/books", 9)
    assert main(["data", "prepare", "job.yaml"]) == 0
    assert capfd.readouterr().out == "nothing to make: all data sets exist\n"
    assert main(["data", "prepare", "job.yaml", "--set", "data.prepare=maybe"]) == 2
    assert "data.prepare: expects auto or never, not 'maybe'" in capfd.readouterr().err


def open_files(path: Path) -> int:
    """How often this process has a file open."""
    return sum(os.path.realpath(f"/proc/self/fd/{name}") == str(path) for name in os.listdir("/proc/self/fd"))


def test_a_lock_counts_only_while_its_folder_is_the_one_that_is_there(tmp_path: Path) -> None:
    """Who waited for a lock in a folder that was removed takes the one of the folder that is there now."""
    folder = tmp_path / "held"
    got: list[int] = []

    def wait() -> None:
        with locked(folder, wait=True):
            got.append((folder / "lock").stat().st_ino)

    with locked(folder, wait=False):
        waiting = threading.Thread(target=wait)
        waiting.start()
        deadline = time.monotonic() + 60
        while open_files(folder / "lock") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with pytest.raises(DataIsHeld), locked(folder, wait=False):
            pass
        shutil.rmtree(folder)
    waiting.join(60)
    assert got == [(folder / "lock").stat().st_ino]


def test_where_a_source_is_named_twice_the_one_with_text_says_how_it_is_made() -> None:
    [source] = survey(spec(blend=["data/books"], validation=[{"path": "data//books", "text": "raw/more"}]))
    assert (source.place, source.entry.text) == ("data.blend[0]", ["raw/more"])
    assert source.is_to_be_made
    assert source.note == "data//books does not exist yet; it is made first, from raw/more"
    assert isinstance(source, Source)
