"""Every family at every layout and in every precision has the losses of one process, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.examples import write_race
from support.faults import UNSAVED, Ranks
from support.matrix import CELLS, LAYOUTS, REFUSED, STEPS, TOLERANCE, Cell, matrix_job
from support.trained_weights import weights_apart
from support.training import events, largest_difference, losses, make_run, values

from orchestrator.errors import SpecError
from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir, read_lines

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each cell trains on real ranks")]

Reference = Callable[[str, str, int, int], RunDir]


@pytest.fixture(scope="module")
def reference(ranks: Ranks, real_sentences: str, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """One process's run of a family in a precision, with so many layers and micro-batches of such a size."""
    write_race(Path(f"{real_sentences}-race"), 12)

    @cache
    def trained(family: str, dtype: str, num_layers: int, micro_batch_size: int) -> RunDir:
        job = matrix_job(family, dtype, real_sentences, {}, num_layers, micro_batch_size)
        return ranks.must_train(make_run(tmp_path_factory.mktemp("reference"), job), job, inject=unless_compared(dtype))

    return trained


def unless_compared(dtype: str) -> Path | None:
    """Weights are compared in fp32 alone."""
    return None if dtype == "fp32" else UNSAVED


def compared(run: RunDir) -> list[str]:
    """The metrics that no layout may change: losses of all kinds, by part, and the gradient's norm."""
    names = {name for record in read_lines(run.metrics_file) for name in record["values"]}
    kept = ("train/loss", "train/moe/", "train/mtp/", "train/grad_norm", "validation/loss")
    return sorted(name for name in names if name.startswith(kept))


WITHOUT_GRADIENT = "task_head.bias"
"""RACE's one: the softmax over options takes no notice of it, so Adam follows what rounding leaves of its gradient."""


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell(cell: Cell, ranks: Ranks, reference: Reference, real_sentences: str, tmp_path: Path) -> None:
    sizes = cell.num_layers, cell.micro_batch_size
    job = matrix_job(cell.family, cell.dtype, real_sentences, LAYOUTS[cell.layout], *sizes)
    run = ranks.must_train(make_run(tmp_path, job), job, inject=unless_compared(cell.dtype))
    alone = reference(cell.family, cell.dtype, *sizes)
    assert list(losses(run)) == list(range(1, STEPS + 1))
    for name in compared(alone):
        tolerance = TOLERANCE[cell.dtype] * (10 if name == "train/grad_norm" else 1)
        assert largest_difference(values(alone, name), values(run, name)) < tolerance, name
    if cell.dtype == "fp32":
        assert weights_apart(alone, run, without=WITHOUT_GRADIENT) == {}
    [started] = events(run, "started")
    assert started["parameters"] == parameters(job, vocabulary(job).padded_size).per_rank[0].parameters


@pytest.mark.parametrize(("family", "name"), REFUSED)
def test_refused_cell(family: str, name: str) -> None:
    """What cannot be had is known before anything starts, with the reason and the way out."""
    with pytest.raises(SpecError) as refusal:
        matrix_job(family, "fp32", "sentences", LAYOUTS[name])
    problems = refusal.value.problems
    assert REFUSED[family, name] in " ".join(f"{each.message} {each.hint} {each.paths}" for each in problems)
    assert all(each.hint for each in problems)


def test_references_start_where_chance_is(reference: Reference) -> None:
    """ln of the vocabulary: the losses that cells are compared with are those of a network that predicts something."""
    assert 5.4 < losses(reference("gpt", "fp32", 2, 4))[1] < 5.7
    assert 5.5 < values(reference("bert", "fp32", 2, 4), "train/loss/lm")[1] < 6.1
    assert 5.5 < losses(reference("t5", "fp32", 2, 4))[1] < 6.5
    assert 1.3 < losses(reference("race", "fp32", 2, 4))[1] < 1.5, "ln(4) = 1.39"
