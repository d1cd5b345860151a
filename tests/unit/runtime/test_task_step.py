"""The training step of a task: which answers count, and which are right."""

from __future__ import annotations

import pytest
import torch

from orchestrator.runtime.forward_backward import forward_step
from orchestrator.runtime.steps.task import RightAnswer
from orchestrator.spec.sections.task import TaskSpec

MNLI, RACE = (RightAnswer(TaskSpec(name=name, train=["x"])) for name in ("mnli", "race"))


def test_examples_without_a_label_do_not_count() -> None:
    output = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    parts = MNLI.loss(output, {"label": torch.tensor([0, 1, -100])})
    assert float(parts["answer"].total) == pytest.approx(torch.log(torch.tensor(3.0)).item(), abs=1e-3)
    assert int(parts["answer"].count) == int(parts["accuracy"].count) == 2
    assert int(parts["accuracy"].total) == 1


def test_the_options_of_an_example_compete() -> None:
    """Two questions of four options, one score each; the second's best is its third."""
    output = torch.tensor([[4.0], [1.0], [1.0], [1.0], [0.0], [0.0], [3.0], [0.0]])
    parts = RACE.loss(output, {"label": torch.tensor([0, 1])})
    scores = output.view(2, 4)
    expected = -(torch.log_softmax(scores, 1)[0, 0] + torch.log_softmax(scores, 1)[1, 1])
    assert float(parts["answer"].total) == pytest.approx(float(expected))
    assert (int(parts["accuracy"].total), int(parts["accuracy"].count)) == (1, 2)


def test_the_sequences_of_an_example_stand_next_to_each_other() -> None:
    fields = {name: torch.arange(2 * 4 * 3).view(2, 4, 3) for name in ("text", "types", "padding_mask")}
    batch = RACE.get_batch({**fields, "label": torch.tensor([1, 2])})
    assert batch["text"].tolist() == torch.arange(24).view(8, 3).tolist()
    assert batch["label"].tolist() == [1, 2]


@pytest.mark.parametrize("step", [MNLI, RACE], ids=["mnli", "race"])
def test_random_tokens_give_a_batch_of_the_same_cost(step: RightAnswer) -> None:
    tokens = torch.randint(0, 100, (2, 8))
    batch = step.get_batch({"tokens": tokens, "position_ids": torch.arange(8).expand(2, 8)})
    assert batch["text"].shape == batch["types"].shape == batch["padding_mask"].shape == (2 * step.sequences, 8)
    assert set(batch["label"].tolist()) <= set(range(step.classes))


def test_what_is_measured_is_reported_and_not_minimised() -> None:
    batch = {"label": torch.tensor([0, 1])}
    _, loss = forward_step(_Fixed(TaskSpec(name="mnli", train=["x"])), False, iter([batch]), None)
    minimised, report = loss(torch.zeros(2, 3))
    assert float(minimised) == pytest.approx(torch.log(torch.tensor(3.0)).item())
    assert report["loss"].tolist() == [[pytest.approx(2.1972246), 2.0], [1.0, 2.0]]


class _Fixed(RightAnswer):
    def forward(self, model: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.zeros(2, 3)
