"""When the validation loss is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.faults import UNSAVED, Ranks
from support.trained_together import TrainedTogether
from support.training import four_layer_job, tiny_job, values

from orchestrator.planning.blend import samples_needed
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.runtime.callbacks.evaluation import evaluating, evaluations_before
from orchestrator.spec.sections.evaluation import EvaluationSpec


def test_what_is_drawn_meanwhile_changes_nothing_after_it() -> None:
    """As Transformer Engine's attention draws."""
    network: Any = SimpleNamespace(chunks=[], modules=[], captured=None)
    before = torch.get_rng_state()
    with evaluating(network):
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

    network: Any = SimpleNamespace(chunks=[], modules=[], captured=SimpleNamespace(left_alone=left_alone))
    with contextlib.suppress(ZeroDivisionError), evaluating(network):
        moments.append("evaluated")
        if fails:
            raise ZeroDivisionError
    assert moments == ["aside", "evaluated", "back"]


@pytest.mark.parametrize(
    ("interval", "at", "before"), [(8, 0, 0), (8, 8, 0), (8, 16, 1), (8, 20, 2), (8, 24, 2), (30, 20, 0), (None, 0, 0)]
)
def test_evaluations_go_on_through_the_set(interval: int | None, at: int, before: int) -> None:
    """As Megatron-LM's: at 8, 16 and, behind the last step, 20 or 24."""
    spec = EvaluationSpec(eval_interval=interval, same_samples=False)
    assert evaluations_before(spec, at) == before
    assert evaluations_before(spec.model_copy(update={"same_samples": True}), at) == 0


def test_as_many_samples_are_held_out_as_megatron_lm_asks_for() -> None:
    for steps, interval, expected in ((20, 8, 3), (24, 8, 4), (20, 30, 1)):
        evaluation = {"eval_interval": interval, "eval_iters": 5, "same_samples": False}
        job = four_layer_job("job", evaluation=evaluation, schedule={"train_iters": steps})
        assert samples_needed(job, BatchSchedule.of(job)).validation == expected * 5 * 8


STILL: dict[str, Any] = {"optimizer": {"lr": 1e-12, "weight_decay": 0.0}, "schedule": {"train_iters": 5}}
NEXT = {"eval_interval": 2, "eval_iters": 1, "same_samples": False}
TOGETHER = {"eval_interval": 5, "eval_iters": 3}
EVALUATED: list[tuple[dict[str, Any], list[int]]] = [
    ({"eval_at_start": True}, [0]),
    ({"eval_interval": 2, "eval_at_start": True}, [0, 2, 4, 5]),
    ({"eval_interval": 1}, [1, 2, 3, 4, 5]),
    ({"eval_interval": 2, "eval_at_end": False}, [2, 4]),
]
"""Of a job with five steps: what it says of evaluations, and when there are some."""


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> TrainedTogether[str]:
    """By what they say of evaluations."""
    jobs = {str(each): tiny_job("job", **STILL, evaluation=each) for each in (NEXT, TOGETHER)}
    more = {"batch": {"micro_batch_size": 8}, "schedule": {"train_iters": 5}}
    for each, _ in EVALUATED:
        jobs[str(each)] = tiny_job("job", **more, evaluation={"eval_iters": 1, **each})
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs, inject=UNSAVED)


@pytest.mark.slow("trains tiny jobs in a rank")
def test_each_evaluation_reads_the_next_samples(trained: TrainedTogether[str]) -> None:
    """With weights that stand still, three evaluations in a row give what one of their batches together gives."""
    found = values(trained[str(NEXT)], "validation/loss")
    [whole] = values(trained[str(TOGETHER)], "validation/loss").values()
    assert list(found) == [2, 4, 5]
    assert len({round(loss, 6) for loss in found.values()}) == 3
    assert sum(found.values()) / 3 == pytest.approx(whole, rel=1e-6)


@pytest.mark.slow("trains tiny jobs in a rank")
@pytest.mark.parametrize(("evaluation", "expected"), EVALUATED)
def test_evaluated_iterations(evaluation: dict[str, Any], expected: list[int], trained: TrainedTogether[str]) -> None:
    measured = values(trained[str(evaluation)], "validation/loss")
    assert list(measured) == expected
    assert all(5.3 < loss < 5.8 for loss in measured.values()), "random tokens stay near ln(250) = 5.52"
