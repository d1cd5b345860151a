"""Sample indices that are built before a job starts are those that it looks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.faults import CommandLine, Ranks
from support.training import layout, logs, make_run, tiny_job

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
    run = ranks.must_train(make_run(tmp_path, job), job)
    assert f"sample indices: found in {folder}\n" in logs(run)
    assert times(folder) == before
    # Another length asks for other samples: of those there are no indices of two sources and of their blend yet.
    shorter = tiny_job("shorter", **{**job.model_dump(exclude={"name"}), "schedule": {"train_iters": 3}})
    assert "sample indices: 8 files built in" in logs(ranks.must_train(make_run(tmp_path, shorter), shorter))
