"""Stages of unequal length, the embedding and the loss in stages of their own: one process's losses and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.trained_together import ResumedTogether, TrainedTogether, selected
from support.trained_weights import weights_apart
from support.training import events, largest_difference, layout, losses, tiny_job, values

from orchestrator.planning.plan import make_plan
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

STEPS = 4
"""Half of them at each layout: its second step sees weights that it has updated itself."""
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


def job(name: str, parallelism: dict[str, Any], steps: int = STEPS) -> JobSpec:
    return tiny_job(
        name,
        model={"num_layers": 6, "hidden_size": 32, "seq_length": 32},
        batch={"micro_batch_size": 2 if parallelism else 8},
        parallelism=parallelism,
        schedule={"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 0},
    )


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("injected") / "counting.py"
    path.write_text(f'import os, sys\nRANK = os.environ["RANK"]\n{COUNTS}')
    return path


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


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, counting: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """Half a training at each layout, and all of it in one process."""
    jobs = {"one": job("one", {})}
    jobs |= {name: job(name, LAYOUTS[name][0], STEPS // 2) for name in selected(request, "name")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs, counting)


@pytest.fixture(scope="module")
def gone_on(request: pytest.FixtureRequest, ranks: Ranks, trained: TrainedTogether[str]) -> ResumedTogether[str]:
    """The other halves in one process."""
    return ResumedTogether(ranks, trained, {name: job(name, {}) for name in selected(request, "name")})


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, trained: TrainedTogether[str], gone_on: ResumedTogether[str]) -> None:
    """Trained in part, saved, and trained on in one process; each rank holds what the plan says."""
    parallelism, layers = LAYOUTS[name]
    reference, run = trained["one"], gone_on[name]
    plan = make_plan(job(name, parallelism))
    planned = [rank.parameters for rank in plan.parameters.per_rank]
    built = [json.loads((run.path / f"built-{rank}.json").read_text()) for rank in range(len(layers))]
    assert built == [[count, held] for count, held in zip(planned, layers, strict=True)]
    assert [[chunk.last - chunk.first + 1 for chunk in chunks] for chunks in plan.topology.stages] == layers
    [resumed] = events(run, "resumed")
    assert resumed["iteration"] == STEPS // 2
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4
    assert weights_apart(reference, run) == {}
