"""A decoder that sees: what of its encoder is trained, kept and recomputed. Layouts: test_matrix.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.faults import WEIGHTS_ALONE, Ranks
from support.matrix import FAMILIES
from support.trained_together import TrainedTogether
from support.trained_weights import BITWISE, weights_apart
from support.training import events, largest_difference, layout, logs, losses, make_run, tiny_job

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each variant trains on real ranks")]

STEPS = 3
TWO = layout(tp=2, sequence_parallel=True)


SAVES = {"save_interval": 2}
STILL = {"lr": 1e-12, "weight_decay": 0.0}


def vision_job(name: str, parallelism: dict[str, Any], **more: Any) -> JobSpec:
    model = {**FAMILIES["vision"], **more.pop("model", {})}
    model["vision"] = {**model["vision"], **more.pop("vision", {})}
    schedule = {"train_iters": STEPS, "lr_warmup_iters": 0}
    return tiny_job(name, model=model, parallelism=parallelism, schedule=schedule, **more)


def trained(ranks: Ranks, folder: Path, name: str, parallelism: dict[str, Any], **more: Any) -> RunDir:
    job = vision_job(name, parallelism, **more)
    return ranks.must_train(make_run(folder, job), job, inject=WEIGHTS_ALONE)


JOBS = {
    "reference": vision_job("one", {}, checkpoint=SAVES),
    "frozen": vision_job("frozen", {}, vision={"freeze": True}),
    "begun": vision_job("begun", {}, vision={"freeze": True}, optimizer=STILL),
    "blind": tiny_job(
        "blind",
        model={name: value for name, value in FAMILIES["vision"].items() if name != "vision"},
        schedule={"train_iters": STEPS, "lr_warmup_iters": 0},
    ),
    "gemma": vision_job("gemma", {}, model={"apply_layernorm_1p": True}, optimizer=STILL),
    "full": vision_job(
        "full",
        layout(pp=2),
        runtime={"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
    ),
    "selective": vision_job(
        "selective",
        layout(pp=2),
        runtime={"recompute_granularity": "selective", "recompute_modules": ["core_attn", "layernorm"]},
    ),
}
"""What needs no other run: those of one rank together, and those of two."""


@pytest.fixture(scope="module")
def runs(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> TrainedTogether[str]:
    return TrainedTogether(ranks, tmp_path_factory.mktemp("runs"), JOBS, WEIGHTS_ALONE)


@pytest.fixture(scope="module")
def reference(runs: TrainedTogether[str]) -> RunDir:
    return runs["reference"]


def test_frozen(reference: RunDir, runs: TrainedTogether[str], ranks: Ranks, tmp_path: Path) -> None:
    """A frozen encoder stays as it began, which every weight of one that is trained does not."""
    one, begun = runs["frozen"], runs["begun"]
    two = trained(ranks, tmp_path, "two", {**TWO, "data_parallel_size": 2}, vision={"freeze": True})
    assert largest_difference(losses(one), losses(two)) < 1e-5
    assert weights_apart(one, two) == {}
    moved = set(weights_apart(begun, one, BITWISE))
    assert {name for name in moved if name.startswith("vision.")} == {
        f"vision.projector.linear_fc{number}.{kind}" for number in (1, 2) for kind in ("weight", "bias")
    }
    all_moved = {name for name in weights_apart(begun, reference, 1e-6) if name.startswith("vision.")}
    assert {"vision.patches", "vision.class_token", "vision.positions", "vision.input_norm.bias"} <= all_moved
    # Keys' biases move all scores of a query alike, and those of queries and values are beside them in one weight.
    assert len(all_moved) == 4 + 1 + 12 + 4


@pytest.mark.parametrize("granularity", ["full", "selective"])
def test_recomputed(granularity: str, reference: RunDir, runs: TrainedTogether[str]) -> None:
    run = runs[granularity]
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert weights_apart(reference, run) == {}


def test_images_are_seen(reference: RunDir, runs: TrainedTogether[str]) -> None:
    """Without an encoder the same tokens have other losses."""
    assert largest_difference(losses(reference), losses(runs["blind"])) > 1e-4


def test_goes_on_at_another_layout(reference: RunDir, ranks: Ranks, tmp_path: Path) -> None:
    """From the checkpoint of one process to two, one part of the encoder's heads on each."""
    saved = reference.checkpoint(2)
    shutil.copytree(saved, tmp_path / "two" / "run" / "checkpoints" / saved.name)
    two = trained(ranks, tmp_path, "two", TWO, checkpoint=SAVES)
    assert list(losses(two)) == [STEPS]
    assert largest_difference({STEPS: losses(reference)[STEPS]}, losses(two)) < 1e-5
    assert weights_apart(reference, two) == {}


def test_starts_from_a_decoder_that_does_not_see(runs: TrainedTogether[str], ranks: Ranks, tmp_path: Path) -> None:
    """Its weights are taken, and the encoder begins at random; a frozen one would stay so."""
    first = runs["blind"]
    start = {"pretrained": str(first.path)}
    run = trained(ranks, tmp_path, "sees", TWO, checkpoint=start, optimizer=STILL)
    [event] = events(run, "pretrained")
    assert event["fresh"] == ["the encoder of images"]
    before, after = (StoredWeights(committed(each)[-1].path) for each in (first, run))
    names = [name for name in [*before.keys()] if name.startswith(("decoder.", "embedding."))]
    assert names
    assert all((before.read(name, ())[:256] - after.read(name, ())[:256]).abs().max() < 1e-8 for name in names)
    frozen = vision_job("frozen", {}, vision={"freeze": True}, checkpoint=start)
    stopped = make_run(tmp_path, frozen)
    assert ranks.start(stopped, frozen).wait() == 1
    assert "has no image encoder" in logs(stopped)


def test_frozen_behind_one_that_sees(reference: RunDir, ranks: Ranks, tmp_path: Path) -> None:
    """Tuned from its checkpoint on two stages of two replicas that share the optimizer out, as by one process."""
    tuned: dict[str, Any] = {"checkpoint": {"pretrained": str(reference.path)}, "vision": {"freeze": True}}
    spread = layout(pp=2, dp=2, use_distributed_optimizer=True, overlap_grad_reduce=True)
    one, job = trained(ranks, tmp_path, "one", {}, **tuned), vision_job("four", spread, **tuned)
    four = ranks.must_train(make_run(tmp_path, job), job)
    assert "fresh" not in events(one, "pretrained")[0]
    assert largest_difference(losses(one), losses(four)) < 1e-5
    assert weights_apart(one, four) == {}


def test_an_encoder_begins_alive_before_norms_around_zero(runs: TrainedTogether[str]) -> None:
    """Its own norms multiply by their weights, where the decoder's multiply by 1 + weight."""
    stored = StoredWeights(committed(runs["gemma"])[-1].path)
    norms = {name: stored.read(name, ()) for name in [*stored.keys()] if re.search(r"norm\.weight$", name)}
    means = {name: round(weight.float().mean().item(), 6) for name, weight in norms.items()}
    assert {mean for name, mean in means.items() if name.startswith("vision.")} == {1.0}
    assert {mean for name, mean in means.items() if not name.startswith(("vision.", "optimizer."))} == {0.0}
