"""Families at layouts and in precisions have the losses of one process. Cells that are refused, and what holds those
that are not run: tests/unit/test_matrix_cover.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.examples import write_race
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.matrix import CELLS, STEPS, TOLERANCE, Cell, Training
from support.trained_together import TrainedTogether, selected
from support.trained_weights import weights_apart
from support.training import events, largest_difference, losses, values

from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir, read_lines

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow("each cell trains on real ranks"),
    pytest.mark.timeout(1200),  # the first cell of a number of ranks trains all
]

Trained = TrainedTogether[Training]


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, real_sentences: str, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    write_race(Path(f"{real_sentences}-race"), 12)
    cells: list[Cell] = selected(request, "cell")
    needed: list[Training] = selected(request, "training")
    needed += [training for cell in cells for training in (cell.training, cell.reference)]
    jobs = {training: training.job(real_sentences) for training in needed}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("matrix"), jobs, saved)


LAST = {cell.family: cell.layout for cell in CELLS if cell.dtype == "fp32"}
OPTIMIZERS_AT_ALL = ("gpt", "muon")


def saved(training: Training) -> Path | None:
    """What is injected, so that no more is saved than somebody looks at: weights are compared in fp32 alone. The state
    of an optimizer is saved at each layout with a GPT and with Muon, and with each family at its last layout.
    """
    if training.dtype != "fp32":
        return UNSAVED
    at_all = training.layout is not None and training.family in OPTIMIZERS_AT_ALL
    return None if at_all or training.layout == LAST[training.family] else WEIGHTS_ALONE


def compared(run: RunDir) -> list[str]:
    """The metrics that no layout may change: losses of all kinds, by part, and the gradient's norm."""
    names = {name for record in read_lines(run.metrics_file) for name in record["values"]}
    kept = ("train/loss", "train/moe/", "train/mtp/", "train/grad_norm", "validation/loss")
    return sorted(name for name in names if name.startswith(kept))


WITHOUT_GRADIENT = "task_head.bias"
"""RACE's one: the softmax over options takes no notice of it, so Adam follows what rounding leaves of its gradient."""


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell(cell: Cell, trained: Trained, real_sentences: str) -> None:
    job, run, alone = cell.training.job(real_sentences), trained[cell.training], trained[cell.reference]
    assert list(losses(run)) == list(range(1, STEPS + 1))
    for name in compared(alone):
        tolerance = TOLERANCE[cell.dtype] * (10 if name == "train/grad_norm" else 1)
        assert largest_difference(values(alone, name), values(run, name)) < tolerance, name
    if cell.dtype == "fp32":
        assert weights_apart(alone, run, without=WITHOUT_GRADIENT) == {}
    [started] = events(run, "started")
    assert started["parameters"] == parameters(job, vocabulary(job).padded_size).per_rank[0].parameters


@pytest.mark.parametrize(
    ("training", "name", "least", "most"),
    [
        (Training("gpt", None, "fp32", 2, 4), "train/loss", 5.4, 5.7),
        (Training("bert", None, "fp32", 2, 4), "train/loss/lm", 5.5, 6.1),
        (Training("t5", None, "fp32", 2, 4), "train/loss", 5.5, 6.5),
        (Training("race", None, "fp32", 2, 2), "train/loss", 1.3, 1.5),  # ln(4) = 1.39
    ],
    ids=lambda value: value.family if isinstance(value, Training) else "",
)
def test_references_start_where_chance_is(
    training: Training, name: str, least: float, most: float, trained: Trained
) -> None:
    """ln of the vocabulary: the losses that cells are compared with are those of a network that predicts something."""
    assert least < values(trained[training], name)[1] < most
