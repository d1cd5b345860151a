"""Conversions of one job at a time: a second one says so and leaves the first one's draft alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.problems import codes, problems_of
from support.training import layout, tiny_job

from orchestrator.cli.models import megatron, reshape
from orchestrator.cli.models.conversion import alone
from orchestrator.data.indexed_dataset.locking import locked
from orchestrator.errors import UserError
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.loading import LoadedJob, dump_resolved, load_text


def loaded() -> LoadedJob:
    return load_text(dump_resolved(tiny_job("held")), "a test")


def draft_in_use(folder: Path) -> Path:
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "half").touch()
    return folder


@pytest.fixture(autouse=True)
def no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*arguments: str) -> dict[str, Any]:
        assert arguments[0] == "describe-megatron", "it starts no conversion"
        return {"kinds": ["decoder"], "arguments": None}

    monkeypatch.setattr(reshape, "convert", convert)
    monkeypatch.setattr(megatron, "convert", convert)


def refused(draft: Path, said: str, call: Any) -> None:
    draft_in_use(draft)
    with locked(draft, wait=False), pytest.raises(UserError) as caught:
        call()
    assert (str(caught.value), caught.value.exit_code) == (said, 2)
    assert (draft / "checkpoint" / "half").exists()


def test_a_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    refused(
        tmp_path / ".out.reshape",
        f"another process is writing {tmp_path / 'out'} now; wait for it, or name another folder",
        lambda: reshape.write_checkpoint(tmp_path / "source", loaded().job, tmp_path / "out"),
    )


def test_a_run_that_is_being_made(tmp_path: Path) -> None:
    new = loaded()
    refused(
        tmp_path / "held" / f".reshape-{new.job.config_hash[:8]}",
        "another process is reshaping a checkpoint for held now; wait for it",
        lambda: reshape.write_run(tmp_path / "source", new, tmp_path),
    )


def test_a_run_that_is_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, source = loaded(), tmp_path / "iter_0000001"
    source.mkdir()
    (source / ".metadata").touch()
    monkeypatch.setattr(megatron, "job_of", lambda *_: new)
    monkeypatch.setattr(megatron, "check_weights", lambda *_: None)
    refused(
        RunDir(tmp_path / "held" / f".import-{new.job.config_hash[:8]}").path,
        f"another process is importing {source} as held now; wait for it",
        lambda: megatron.import_megatron(
            source, name=None, job_file=None, iteration=None, runs=tmp_path, as_json=False
        ),
    )


def test_the_global_batch_stays_where_it_followed_from_micro_batches(tmp_path: Path) -> None:
    """As of what `init` writes: the micro-batches follow from it, unless a batch is asked for."""
    batch = {"micro_batch_size": 1, "global_batch_size": None, "num_micro_batches": 4}
    old = tiny_job("job", batch=batch, parallelism=layout(pp=2, dp=4))
    weights = Weights(tmp_path, old, None)

    def sizes(*overrides: str) -> tuple[int, int]:
        job = reshape.job_at(old, None, list(overrides), weights).job
        changed = {change.path for change in diff_jobs(old, job) if change.kind != "safe"}
        assert bool(changed) == (job.global_batch_size != old.global_batch_size)
        return job.global_batch_size, job.num_micro_batches

    assert sizes("parallelism.tensor_model_parallel_size=2") == (16, 4)
    one_stage = "parallelism.pipeline_model_parallel_size=1"
    assert sizes(one_stage, "parallelism.data_parallel_size=2") == (16, 8)
    assert sizes("parallelism.data_parallel_size=2", "batch.num_micro_batches=2") == (4, 2)
    found = codes(problems_of(lambda: sizes("parallelism.data_parallel_size=3")))
    assert found == ["global_batch batch.global_batch_size"]


def test_what_a_killed_conversion_left_goes_first(tmp_path: Path) -> None:
    draft = draft_in_use(tmp_path / "draft")
    with alone(draft, "held"):
        assert [path.name for path in draft.iterdir()] == ["lock"]
    assert not draft.exists()
