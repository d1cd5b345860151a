"""Context parallelism: ranks that share a sequence have the losses and weights of one process, whatever each
holds of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import WEIGHTS_ALONE, Ranks
from support.trained_together import TrainedTogether, selected
from support.trained_weights import weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

MASKED = """
from orchestrator.runtime.batch_sampler import RandomTokens
_item = RandomTokens.__getitem__
def item(self, index):
    sample = _item(self, index)
    sample["loss_mask"][: index % 40] = 0.0
    return sample
RandomTokens.__getitem__ = item
"""
"""What does not count is at the beginning of a sequence, of which one rank has more than another."""
OVERLAPS = """
import os, sys
from orchestrator.runtime.network import model
_wrap = model.DistributedDataParallel
def wrap(config, settings, chunk, **more):
    with open(f"{sys.argv[1]}/overlaps-{os.environ['RANK']}", "w") as file:
        file.write(f"{settings.overlap_grad_reduce} {settings.overlap_param_gather}")
    return _wrap(config, settings, chunk, **more)
model.DistributedDataParallel = wrap
"""
SEEDS = """
import torch
from orchestrator.runtime import startup
_seed = startup.seed_everything
def seed_everything(seed, ranks, **more):
    _seed(seed, ranks, **more)
    with open(f"{sys.argv[1]}/seed-{RANK}", "w") as file:
        file.write(str(torch.initial_seed()))
startup.seed_everything = seed_everything
"""


STEPS = 3


def job(name: str, parallelism: dict[str, Any], per_token: bool = False, **model: Any) -> JobSpec:
    return tiny_job(
        name,
        model={"num_layers": 2, "seq_length": 48, "num_query_groups": 2, **model},
        parallelism=parallelism,
        batch={"micro_batch_size": 1, "global_batch_size": 2},
        schedule={"train_iters": STEPS, "lr_warmup_iters": 0},
        evaluation={"eval_interval": STEPS, "eval_iters": 1},
        data={"random_tokens": True, "eod_mask_loss": per_token},
    )


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("injected") / "masked.py"
    path.write_text(MASKED + OVERLAPS)
    return path


LAYOUTS: dict[str, dict[str, Any]] = {
    "cp2-per-token": layout(context_parallel_size=2),
    "cp2-tp2-sp": layout(tp=2, sequence_parallel=True, context_parallel_size=2),
    "cp2-pp2": layout(pp=2, context_parallel_size=2),
    "cp4": layout(context_parallel_size=4),
}


Trained = TrainedTogether[str | bool]


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, masked: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """Of each layout, and of one process with the mean over each micro-batch and over the tokens of the whole batch."""
    jobs: dict[str | bool, JobSpec] = {per_token: job("one", {}, per_token) for per_token in (False, True)}
    jobs |= {name: job(name, LAYOUTS[name], "per-token" in name) for name in selected(request, "name")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs, masked, WEIGHTS_ALONE)


@pytest.fixture(scope="module")
def references(trained: Trained) -> dict[bool, RunDir]:
    runs = {per_token: trained[per_token] for per_token in (False, True)}
    assert losses(runs[False]) != losses(runs[True]), "the masks make the two means differ"
    assert weights_apart(runs[False], runs[True]) != {}
    return runs


def agree(one: RunDir, other: RunDir) -> None:
    assert largest_difference(losses(one), losses(other)) < 1e-5
    assert largest_difference(values(one, "validation/loss"), values(other, "validation/loss")) < 1e-5
    assert largest_difference(values(one, "train/grad_norm"), values(other, "train/grad_norm")) < 1e-4
    assert weights_apart(one, other) == {}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, trained: Trained, references: dict[bool, RunDir]) -> None:
    agree(references["per-token" in name], trained[name])
    # Ranks that share a sequence reduce gradients as replicas do, and as early.
    assert (trained[name].path / "overlaps-0").read_text() == "True True"


def test_linear_attention_shares_out_its_heads(ranks: Ranks, tmp_path: Path) -> None:
    """Ranks that share a sequence have all tokens of some key heads of a tensor-parallel rank."""
    delta = {"linear_attention_freq": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8}
    widths = {"linear_key_head_dim": 8, "linear_value_head_dim": 12, "add_bias_linear": False}
    spread = layout(tp=2, sequence_parallel=True, context_parallel_size=2)
    runs = []
    for name, parallelism in (("alone", {}), ("spread", spread)):
        made = job(name, parallelism, **delta, **widths).changed(optimizer={"adam_eps": 1e-6})
        runs.append(ranks.must_train(make_run(tmp_path, made), made, inject=WEIGHTS_ALONE))
    one, other = runs
    for key, near in (("train/loss", 1e-6), ("validation/loss", 1e-6), ("train/grad_norm", 1e-5)):
        assert largest_difference(values(one, key), values(other, key)) < near, key
    assert weights_apart(one, other) == {}


def stop_and_go_on(ranks: Ranks, run: RunDir, before: JobSpec, after: JobSpec, inject: Path, *others: RunDir) -> None:
    """Stop after a step or two, and resume at another layout. `others` are trained in the processes of the first."""
    run.stop_file.write_text("{}")
    ranks.train_several([*others, run], before.world_size, inject=inject)
    run.stop_file.unlink()
    assert 0 < committed(run)[-1].iteration < after.schedule.train_iters
    ranks.must_train(make_run(run.path.parents[1], after), after, launch_id="second", inject=inject)
    [resumed] = events(run, "resumed")
    assert resumed["iteration"] > 0


def test_a_checkpoint_moves_to_another_size(
    ranks: Ranks, masked: Path, references: dict[bool, RunDir], tmp_path: Path
) -> None:
    """Weights and the optimizer's state, which replicas and parts of the sequence share, are one process's."""
    before, after = job("moved", layout(dp=2, context_parallel_size=2)), job("moved", {})
    run = make_run(tmp_path, before)
    stop_and_go_on(ranks, run, before, after, masked)
    reference = references[False]
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4
    assert weights_apart(reference, run) == {}


def test_dropout_differs_between_ranks_and_is_resumed(
    ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path
) -> None:
    dropping = job("dropping", layout(context_parallel_size=2), hidden_dropout=0.1, attention_dropout=0.1)
    seeds = inject(SEEDS)
    whole, run = (make_run(tmp_path / name, dropping) for name in ("whole", "stopped"))
    stop_and_go_on(ranks, run, dropping, dropping, seeds, whole)
    assert (whole.path / "seed-0").read_text() != (whole.path / "seed-1").read_text()
    assert losses(run) == losses(whole)
    assert len(losses(whole)) == STEPS
