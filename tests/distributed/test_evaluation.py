"""Validation: when it happens, on what, the same at every layout, and without a trace in the training."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import UNSAVED, Ranks, wait_until
from support.held import let_go
from support.training import events, largest_difference, layout, logs, losses, make_run, tiny_job, values

from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.exits.causes import by_word_of_the_ranks
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog, read_records

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(300),
    pytest.mark.slow("starts real ranks"),
]

EVALUATION = {"eval_interval": 2, "eval_iters": 2, "eval_at_start": True}


def text_sections(real_text: list[str], **sections: Any) -> dict[str, Any]:
    first, second = real_text
    return {
        "model": {"vocab_size": None, "hidden_dropout": 0.1},
        "data": {
            "random_tokens": False,
            "blend": [{"path": first}],
            "validation": [{"path": first, "weight": 3}, {"path": second}],
            "split": "1,0,0",
        },
        "optimizer": {"lr": 3e-3},
        "schedule": {"train_iters": 5},
        **sections,
    }


@pytest.fixture(scope="module")
def evaluated(ranks: Ranks, real_text: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = tiny_job("evaluated", **text_sections(real_text, evaluation=EVALUATION))
    return ranks.must_train(make_run(tmp_path_factory.mktemp("evaluated"), job), job, inject=UNSAVED)


def test_at_the_start_at_intervals_and_at_the_end(evaluated: RunDir) -> None:
    keys = ["validation/loss", "validation/json/loss", "validation/email/loss"]
    for key in keys:
        curve = values(evaluated, key)
        assert list(curve) == [0, 2, 4, 5]
        assert 5.2 < curve[0] < 5.7, "before the first step it is near ln(261) = 5.56"
        assert curve[5] < curve[0] - 0.2
    perplexity = values(evaluated, keys[0].replace("loss", "perplexity"))
    assert perplexity == {i: math.exp(loss) for i, loss in values(evaluated, keys[0]).items()}


def test_training_is_not_touched(evaluated: RunDir, ranks: Ranks, real_text: list[str], tmp_path: Path) -> None:
    """Dropout draws the same masks with and without evaluation."""
    job = tiny_job("alone", **text_sections(real_text))
    assert ranks.losses_of(job, tmp_path) == losses(evaluated)


def test_a_part_without_documents_is_a_users_error(ranks: Ranks, real_text: list[str], tmp_path: Path) -> None:
    """Of every rank; the command that waits for the run returns 2, and no cluster starts it again."""
    data = {"random_tokens": False, "blend": [{"path": real_text[0]}], "split": "1000000,1,0"}
    sections = {**text_sections(real_text), "data": data, "parallelism": layout(dp=2)}
    job = tiny_job("empty", **sections, evaluation={"eval_interval": 4})
    run = make_run(tmp_path, job)
    assert ranks.start(run, job).wait() == 1
    end = by_word_of_the_ranks(run, "test")
    assert end is not None, logs(run)
    assert (end.cause, end.code) == ("user_error", 2)
    assert "the validation part of" in end.message


def test_same_numbers_at_other_layouts(ranks: Ranks, real_text: list[str], tmp_path: Path) -> None:
    curves = []
    for name, parallelism in (("one", layout()), ("dp2-pp2", layout(dp=2, pp=2))):
        sections = text_sections(real_text, evaluation=EVALUATION, parallelism=parallelism)
        sections["model"] = {"vocab_size": None}
        job = tiny_job(name, **sections)
        run = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
        curves.append(
            {
                (key, i): loss
                for key in ("validation", "validation/json", "validation/email")
                for i, loss in values(run, f"{key}/loss").items()
            }
        )
    assert len(curves[0]) == 12
    for curve in curves[1:]:
        assert largest_difference(curves[0], curve) < 1e-5


@pytest.mark.parametrize("at_start", [True, False])
def test_stop_during_evaluation(at_start: bool, ranks: Ranks, tmp_path: Path) -> None:
    """It is honoured within one batch, the step before is saved, and the resumed run evaluates it first."""
    endless = {"eval_interval": 3, "eval_iters": 100_000, "eval_at_start": at_start}
    sections = {"parallelism": layout(tp=2), "schedule": {"train_iters": 6}}
    job = tiny_job("stopped", evaluation=endless, **sections)
    run = make_run(tmp_path, job)
    before = time.time()
    started = ranks.start(run, job)
    if at_start:
        wait_until(lambda: events(run, "started"), f"the start:\n{logs(run)}")
    else:
        wait_until(lambda: 3 in losses(run), f"step 3:\n{logs(run)}")
    time.sleep(0.5)
    os.kill(started.ranks[1], signal.SIGTERM)
    assert started.wait() == 0, logs(run)
    iteration = 0 if at_start else 3
    assert [event["iteration"] for event in events(run, "stop_requested")] == [iteration]
    assert committed(run)[-1].iteration == iteration
    assert values(run, "validation/loss") == {}
    assert [event["iteration"] for event in events(run, "evaluation_skipped")] == [iteration]

    stale = [] if at_start else [(3, True)]
    if stale:  # as of a course before this one, from which the run fell back
        MetricLog(run, lambda: None).append(3, 6, 6, {"validation/loss": 99.0}, measured=before)
    short = tiny_job("stopped", evaluation={**endless, "eval_iters": 1}, **sections)
    undisturbed = tiny_job("undisturbed", evaluation={**endless, "eval_iters": 1}, **sections)
    whole = make_run(tmp_path, undisturbed)
    ranks.train_several([make_run(tmp_path, short), whole], short.world_size, launch_id="second", inject=UNSAVED)
    assert list(losses(run)) == list(range(1, 7))
    assert list(values(run, "validation/loss")) == ([0, 3, 6] if at_start else [3, 6])
    order = [(metric.iteration, "validation/loss" in metric.values) for metric in read_records(run.metrics_file)]
    first_steps = [(0, True), (1, False), (2, False), (3, False)] if at_start else [(1, False), (2, False), (3, False)]
    assert order == [*first_steps, *stale, (3, True), (4, False), (5, False), (6, False), (6, True)]
    assert values(run, "validation/loss") == values(whole, "validation/loss")
    assert losses(run) == losses(whole)


def test_what_was_measured_is_not_measured_again(ranks: Ranks, tmp_path: Path) -> None:
    """After a stop behind the evaluation of a step, and of one at which none was due."""
    sections = {"evaluation": {"eval_interval": 2, "eval_iters": 1}}
    run = None
    for steps in (4, 5, 6):
        job = tiny_job("parts", **sections, schedule={"train_iters": steps, "lr_decay_iters": 6})
        run = ranks.must_train(make_run(tmp_path, job), job)
    assert run is not None
    found = [metric.iteration for metric in read_records(run.metrics_file) if "validation/loss" in metric.values]
    assert found == [2, 4, 5, 6]


HELD_LAST_EVALUATION = """
import sys, time
from pathlib import Path
from orchestrator.runtime.callbacks import evaluation
real, batches = evaluation.run_micro_batches, 0
def run_micro_batches(*arguments, **options):
    global batches
    batches += 1
    while batches > 5 and not (Path(sys.argv[1]) / "go").exists():
        time.sleep(0.02)
    return real(*arguments, **options)
evaluation.run_micro_batches = run_micro_batches
"""


def test_the_last_evaluation_is_not_stopped(ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path) -> None:
    """No later one would make up for it; the last checkpoint is there before it begins."""
    evaluation = {"eval_interval": 3, "eval_iters": 5}
    job = tiny_job("ended", evaluation=evaluation, parallelism=layout(tp=2), schedule={"train_iters": 6})
    run = make_run(tmp_path, job)
    started = ranks.start(run, job, inject=inject(HELD_LAST_EVALUATION))
    wait_until(lambda: [commit.iteration for commit in committed(run)][-1:] == [6], f"the end:\n{logs(run)}")
    assert list(values(run, "validation/loss")) == [3], "the last evaluation is still going on"
    os.kill(started.ranks[1], signal.SIGTERM)
    let_go(run)
    assert started.wait() == 0, logs(run)
    assert list(values(run, "validation/loss")) == [3, 6]
    assert [event["iteration"] for event in events(run, "finished")] == [6]
    assert events(run, "evaluation_skipped") == events(run, "stop_requested") == []


@pytest.mark.parametrize("steps", [6, 9])
def test_the_last_evaluation_of_a_killed_run_is_made_up_for(
    steps: int, ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its checkpoint is there already: also where the run is made longer, and that evaluation is the last no more."""
    evaluation = {"eval_interval": 3, "eval_iters": 5}
    job = tiny_job("killed", evaluation=evaluation, schedule={"train_iters": 6})
    run = make_run(tmp_path, job)
    started = ranks.start(run, job, inject=inject(HELD_LAST_EVALUATION))
    wait_until(lambda: [commit.iteration for commit in committed(run)][-1:] == [6], f"the end:\n{logs(run)}")
    started.signal(signal.SIGKILL)
    assert started.wait() == 1
    assert list(values(run, "validation/loss")) == [3]
    job = tiny_job("killed", evaluation=evaluation, schedule={"train_iters": steps})
    ranks.must_train(make_run(tmp_path, job), job, launch_id="second")
    found = [metric.iteration for metric in read_records(run.metrics_file) if "validation/loss" in metric.values]
    assert found == list(range(3, steps + 1, 3))
