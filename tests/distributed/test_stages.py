"""Stages of unequal length, the embedding and the loss in stages of their own: one process's losses and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.trained_weights import weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.planning.plan import make_plan
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

COUNTS = """
import json
from orchestrator.runtime import startup
_count = startup.parameter_count
def parameter_count(chunks):
    with open(f"{sys.argv[1]}/built-{RANK}.json", "w") as file:
        json.dump([_count(chunks), [len(chunk.decoder.layers) for chunk in chunks]], file)
    return _count(chunks)
startup.parameter_count = parameter_count
"""


def job(name: str, parallelism: dict[str, Any]) -> JobSpec:
    return tiny_job(
        name,
        model={"num_layers": 6, "hidden_size": 32, "seq_length": 32},
        batch={"micro_batch_size": 2},
        parallelism=parallelism,
        schedule={"train_iters": 4, "lr_warmup_iters": 1},
    )


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("injected") / "counting.py"
    path.write_text(f'import os, sys\nRANK = os.environ["RANK"]\n{COUNTS}')
    return path


@pytest.fixture(scope="module")
def reference(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    alone = job("one", {})
    return ranks.must_train(make_run(tmp_path_factory.mktemp("reference"), alone), alone)


LAYOUTS: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    # the layout, and how many layers each chunk of each stage holds
    "first-and-last": (
        layout(pp=3, num_layers_in_first_pipeline_stage=1, num_layers_in_last_pipeline_stage=2),
        [[1], [3], [2]],
    ),
    "first-interleaved": (layout(pp=2, vp=2, num_layers_in_first_pipeline_stage=2), [[1, 1], [2, 2]]),
    "embedding-and-loss-alone": (
        layout(pp=4, vp=2, account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True),
        [[0, 1], [1, 1], [1, 1], [1, 0]],
    ),
    "letters": (layout(pp=4, pipeline_model_parallel_layout="E|t*4|tt|L"), [[0], [4], [2], [0]]),
    "letters-interleaved": (layout(pp=2, vp=2, pipeline_model_parallel_layout="Et|ttt,|t|tL"), [[1, 1], [3, 1]]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, ranks: Ranks, reference: RunDir, counting: Path, tmp_path: Path) -> None:
    """Trained in part, saved, and trained on in one process; each rank holds what the plan says."""
    parallelism, layers = LAYOUTS[name]
    before, after = job(name, parallelism), job(name, {})
    run = make_run(tmp_path, before)
    run.stop_file.write_text("{}")
    ranks.must_train(run, before, inject=counting)
    plan = make_plan(before)
    planned = [rank.parameters for rank in plan.parameters.per_rank]
    built = [json.loads((run.path / f"built-{rank}.json").read_text()) for rank in range(len(layers))]
    assert built == [[count, held] for count, held in zip(planned, layers, strict=True)]
    assert [[chunk.last - chunk.first + 1 for chunk in chunks] for chunks in plan.topology.stages] == layers
    run.stop_file.unlink()
    ranks.must_train(make_run(tmp_path, after), after, launch_id="second")
    [resumed] = events(run, "resumed")
    assert 0 < resumed["iteration"] < after.schedule.train_iters
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4
    assert weights_apart(reference, run) == {}
