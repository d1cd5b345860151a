"""The times in metrics.jsonl."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from support.faults import Ranks
from support.training import make_run, tiny_job

from orchestrator.tracking.measurements.metrics import read_records

SLOW, SECONDS = 4, 0.5
"""One step, and how much longer it takes than the others."""
SLEEPING = f"""
import time
from orchestrator.runtime import loop

def update(*arguments, updating=loop.update, steps=[]):
    steps.append(1)
    time.sleep({SECONDS} if len(steps) == {SLOW} else 0)
    return updating(*arguments)

loop.update = update
"""


def test_the_time_of_a_record_is_the_end_of_its_step(
    ranks: Ranks, tmp_path: Path, inject: Callable[[str], Path]
) -> None:
    """Though its loss is known a step later: what lies between two records is the step of the second."""
    job = tiny_job("times", schedule={"train_iters": 8, "lr_warmup_iters": 0}, evaluation={"eval_interval": 4})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(SLEEPING))
    records = list(read_records(run.metrics_file))
    assert [record.time for record in records] == sorted(record.time for record in records)
    steps = {record.iteration: record for record in records if "train/loss" in record.values}
    took = {number: record.values["throughput/step_seconds"] for number, record in steps.items()}
    assert took[SLOW] > SECONDS
    for before, after in pairwise(steps):
        assert steps[after].time - steps[before].time > took[after] - 0.05
