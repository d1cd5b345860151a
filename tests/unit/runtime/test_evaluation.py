"""When the validation loss is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.training import make_run, tiny_job, values

from orchestrator.runtime.callbacks.evaluation import evaluating


def test_what_is_drawn_meanwhile_changes_nothing_after_it() -> None:
    """As Transformer Engine's attention draws."""
    session: Any = SimpleNamespace(chunks=[], modules=[], captured=None)
    before = torch.get_rng_state()
    with evaluating(session):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_graph_holds_is_left_alone(fails: bool) -> None:
    moments: list[str] = []

    @contextlib.contextmanager
    def left_alone() -> Iterator[None]:
        moments.append("aside")
        try:
            yield
        finally:
            moments.append("back")

    session: Any = SimpleNamespace(chunks=[], modules=[], captured=SimpleNamespace(left_alone=left_alone))
    with contextlib.suppress(ZeroDivisionError), evaluating(session):
        moments.append("evaluated")
        if fails:
            raise ZeroDivisionError
    assert moments == ["aside", "evaluated", "back"]


@pytest.mark.slow("each case trains a tiny job in a rank of its own")
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
    job = tiny_job("job", batch={"micro_batch_size": 8}, evaluation={"eval_iters": 1, **evaluation})
    run = ranks.must_train(make_run(tmp_path, job), job)
    measured = values(run, "validation/loss")
    assert list(measured) == expected
    assert all(5.3 < loss < 5.8 for loss in measured.values()), "random tokens stay near ln(250) = 5.52"
