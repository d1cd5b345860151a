"""When the validation loss is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import make_run, tiny_job, values

pytestmark = pytest.mark.slow("each case trains a tiny job in a rank of its own")


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        ({"eval_at_start": True}, [0]),
        ({"eval_interval": 8, "eval_at_start": True}, [0, 8, 16, 20]),
        ({"eval_interval": 10}, [10, 20]),
        ({"eval_interval": 8, "eval_at_end": False}, [8, 16]),
    ],
)
def test_evaluated_iterations(evaluation: dict[str, Any], expected: list[int], ranks: Ranks, tmp_path: Path) -> None:
    job = tiny_job("job", evaluation={"eval_iters": 1, **evaluation})
    run = ranks.must_train(make_run(tmp_path, job), job)
    measured = values(run, "validation/loss")
    assert list(measured) == expected
    assert all(5.3 < loss < 5.8 for loss in measured.values()), "random tokens stay near ln(250) = 5.52"
