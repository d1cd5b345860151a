"""What `orchestrator resume` says of a changed run before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.training import make_run, tiny_job

from orchestrator.api.starts.spec_changes import check_length
from orchestrator.cli.terminal import Terminal
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit


def test_the_end_is_counted_from_the_checkpoint_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, tiny_job("damaged", batch={"global_batch_size": 8}))
    for iteration in (10, 20):
        place = run.checkpoint(iteration)
        place.mkdir(parents=True)
        (place / "weights").write_text("weights")
        samples = 8 * iteration
        write_commit(
            place,
            iteration=iteration,
            consumed_samples=samples,
            files={"weights": file_record(place / "weights")},
            consumed_tokens=64 * samples,
        )
    larger = tiny_job("damaged", batch={"global_batch_size": 16}, schedule={"train_iters": 30})
    check_length(run, larger, Terminal(as_json=False))
    assert "it ends at iteration 40:" in capsys.readouterr().out
    (run.checkpoint(20) / "weights").unlink()
    check_length(run, larger, Terminal(as_json=False))
    assert f"it ends at iteration {10 + (480 - 80) // 16}:" in capsys.readouterr().out
