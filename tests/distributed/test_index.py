"""Sample indices built before a job starts are those that it looks for; an index that is damaged ends the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.faults import UNSAVED, CommandLine, Ranks
from support.indexed_files import write_indexed
from support.training import events, layout, logs, losses, make_run, tiny_job

from orchestrator.data.indexed_dataset.header import HEADER, idx_path, read_index
from orchestrator.data.source_survey import LOOKED_THROUGH
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300), pytest.mark.slow("starts real ranks")]


def times(folder: Path) -> dict[Path, int]:
    """When each file of an index was written."""
    return {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "lock"}


def test_the_training_builds_nothing_anew(
    orchestrator: CommandLine, ranks: Ranks, real_text: list[str], tmp_path: Path
) -> None:
    first, second = real_text
    job = tiny_job(
        "indexed",
        model={"vocab_size": None},
        data={
            "random_tokens": False,
            "blend": [{"path": first, "weight": 3}, {"path": second}],
            "validation": [{"path": second}, {"path": first}],
        },
        evaluation={"eval_interval": 2, "eval_iters": 1},
        schedule={"train_iters": 4},
        parallelism=layout(dp=2),
    )
    (tmp_path / "job.yaml").write_text(dump_resolved(job))
    done = orchestrator("data", "index", "job.yaml", "--runs-dir", tmp_path, "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert [each["name"] for each in answer["sets"]] == ["train", "blend", "email", "json"]
    folder = Path(answer["folder"])
    assert answer["built"] == len(list(folder.glob("*.npy")))
    before = times(folder)
    run = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
    assert f"sample indices: found in {folder}\n" in logs(run)
    assert times(folder) == before
    # Another length asks for other samples: of those there are no indices of two sources and of their blend yet.
    shorter = tiny_job("shorter", **{**job.model_dump(exclude={"name"}), "schedule": {"train_iters": 3}})
    run = ranks.must_train(make_run(tmp_path, shorter), shorter, inject=UNSAVED)
    assert "sample indices: 8 files built in" in logs(run)


def test_an_index_that_is_damaged_within(ranks: Ranks, orchestrator: CommandLine, tmp_path: Path) -> None:
    """One that is looked through at the start only: every rank ends with the same message, and nothing is begun."""
    prefix = Path(write_indexed(tmp_path / "large", [1] * (LOOKED_THROUGH // 20 + 1)))
    assert read_index(prefix).index_bytes > LOOKED_THROUGH
    whole = idx_path(prefix).read_bytes()
    place = HEADER.size + 4 * 1_000_000
    idx_path(prefix).write_bytes(whole[:place] + (7).to_bytes(4, "little") + whole[place + 4 :])
    job = tiny_job(
        "damaged",
        model={"vocab_size": None},
        data={"random_tokens": False, "blend": [{"path": str(prefix)}]},
        schedule={"train_iters": 3},
        parallelism=layout(dp=2),
    )
    orchestrator.env = ranks.for_commands()
    said = orchestrator("run", orchestrator.write(job), "--runs-dir", tmp_path / "runs")
    message = (
        f"{prefix}.idx is damaged: its sequence 1000000 of 7 tokens, 2 bytes each, begins at byte 2000000 of the data "
        "and ends at 2000002. Tokenize again or copy it again"
    )
    [folder] = (tmp_path / "runs" / job.name).iterdir()
    run = RunDir(folder)
    assert said.code == 2, said.err
    assert said.err.endswith(f"error: run {job.name}/{folder.name} ended: the input is wrong: {message}\n")
    assert "Traceback" not in logs(run) + said.out
    for rank in (0, 1):
        assert f"rank {rank}: user_error: {message}\n" in run.rank_log(rank).read_text()
    assert not events(run, "started")
    idx_path(prefix).write_bytes(whole)
    said = orchestrator("resume", run.path)
    assert said.code == 0, said.err
    assert len(losses(run)) == 3
