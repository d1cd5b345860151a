"""Checkpoints of unknown origin: what reads them runs nothing that is in them, even where the commit marker fits."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.training import make_run, tiny_job

import orchestrator.inference.__main__ as inference
from orchestrator.data.tokenizers.vocabulary import content_hash
from orchestrator.run_directory.checkpoints.commit_markers import (
    committed,
    file_record,
    read_commit,
    verify,
    write_commit,
)
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import open_weights
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

pytestmark = pytest.mark.distributed


class Call:
    """A pickle that makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def in_metadata(checkpoint: Path, code: Call) -> None:
    (checkpoint / ".metadata").write_bytes(pickle.dumps(code))


def in_common(checkpoint: Path, code: Call) -> None:
    torch.save({"train_state": code}, checkpoint / "common.pt")


def in_object(checkpoint: Path, code: Call) -> None:
    """In place of every object of the layers."""
    planted = io.BytesIO()
    torch.save(code, planted)
    file = checkpoint / "__0_0.distcp"
    offset = file.stat().st_size
    file.write_bytes(file.read_bytes() + planted.getvalue())
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    places = [place for index, place in metadata.storage_data.items() if "_extra_state" in index.fqn]
    assert places
    for place in places:
        place.relative_path, place.offset, place.length = file.name, offset, len(planted.getvalue())
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


PLANTED: dict[str, Callable[[Path, Call], None]] = {
    ".metadata": in_metadata,
    "common.pt": in_common,
    "__0_0.distcp": in_object,
}


@pytest.fixture(scope="module")
def source(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, JobSpec]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "vocab.txt").write_text("[UNK]\n[SEP]\nword\n")
    job = tiny_job(
        "source",
        schedule={"train_iters": 2, "lr_warmup_iters": 1},
        data={"tokenizer": {"type": "wordpiece", "path": str(folder / "vocab.txt")}},
        checkpoint={"save_interval": 1, "keep_last": 1},
    )
    return ranks.must_train(make_run(folder, job), job), job


def test_a_checkpoint_that_a_run_saved_carries_its_tokenizer(source: tuple[RunDir, JobSpec]) -> None:
    """In the marker like every other file; the one before was removed with it."""
    run, job = source
    [commit] = committed(run)
    assert {"job.json", "tokenizer/vocab.txt"} <= commit.files.keys()
    assert verify(commit.path) == []
    assert [path.name for path in run.checkpoints.iterdir()] == ["iter_0000002"]
    carried = open_weights(commit.path).job
    assert carried.data.tokenizer.path == str(commit.path / "tokenizer" / "vocab.txt")
    assert content_hash(carried.data.tokenizer) == content_hash(job.data.tokenizer)
    assert load_resolved(commit.path / "job.json") == job


def recommitted(checkpoint: Path) -> None:
    """With a marker that fits what is there now."""
    commit = read_commit(checkpoint)
    assert commit is not None
    files = {name: file_record(checkpoint / name) for name in commit.files}
    write_commit(
        checkpoint,
        iteration=commit.iteration,
        consumed_samples=commit.consumed_samples,
        files=files,
        **commit.details,
    )


@pytest.mark.parametrize("file", PLANTED)
def test_nothing_planted_runs(ranks: Ranks, source: tuple[RunDir, JobSpec], tmp_path: Path, file: str) -> None:
    """Not when a run is resumed or begun from it, nor by a generation, whatever the environment asks torch for."""
    own, job = source
    run = make_run(tmp_path / "runs", tiny_job("source", schedule={"train_iters": 3}))
    checkpoint = shutil.copytree(committed(own)[-1].path, run.checkpoint(2))
    ran = tmp_path / "ran"
    PLANTED[file](checkpoint, Call(ran))
    recommitted(checkpoint)
    tuned = tiny_job("tuned", checkpoint={"pretrained": str(checkpoint)})
    unsafe = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    starts = [ranks.start(each, job, env=unsafe) for each in (run, make_run(tmp_path / "runs", tuned))]
    program = Path(str(inference.__file__))
    starts.append(ranks.starter.start(checkpoint, 1, "--prompt=x", env=unsafe, program=program))
    assert [started.wait() for started in starts] == [1, 1, 1]
    assert not ran.exists()
    for each in (run, make_run(tmp_path / "runs", tuned)):
        record = json.loads(each.exit_record("test", 0).read_text())
        assert record["cause"] == "checkpoint"
        assert str(checkpoint / file) in record["message"]
        assert "it names posix.mkdir, which weights never contain" in record["message"]


def test_files_of_two_checkpoints_and_torn_ones_are_named(
    ranks: Ranks, source: tuple[RunDir, JobSpec], tmp_path: Path
) -> None:
    """A job that is told to begin from such a checkpoint ends before its first step."""
    own, _ = source
    other = tiny_job("other", runtime={"seed": 5}, schedule={"train_iters": 1, "lr_warmup_iters": 0})
    stranger = committed(ranks.must_train(make_run(tmp_path, other), other))[-1].path
    whole = committed(own)[-1].path
    mixed, torn = (shutil.copytree(whole, tmp_path / name) for name in ("mixed", "torn"))
    shutil.copyfile(stranger / "__0_0.distcp", mixed / "__0_0.distcp")
    (torn / "__0_1.distcp").write_bytes((torn / "__0_1.distcp").read_bytes()[:-10])
    started = {}
    for path in (mixed, torn):
        tuned = tiny_job(path.name, checkpoint={"pretrained": str(path)})
        run = make_run(tmp_path, tuned)
        started[path] = run, ranks.start(run, tuned)
    for (path, (run, ends)), file in zip(started.items(), ("__0_0.distcp", "__0_1.distcp"), strict=True):
        assert ends.wait() == 1
        record = json.loads(run.exit_record("test", 0).read_text())
        assert record["cause"] == "checkpoint"
        assert f"{path / file} is damaged" in record["message"]
