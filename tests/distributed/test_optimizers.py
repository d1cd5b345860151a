"""Every optimizer under parallelism: the losses and weights of one process, and bitwise resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.trained_together import ResumedTogether, TrainedTogether, selected
from support.trained_weights import OF_ADAM, OF_SGD, weights_apart
from support.training import events, layout, losses, make_run, tiny_job, values

from orchestrator.spec.job import JobSpec

STEPS = 4
SCHEDULE = {"train_iters": STEPS, "lr_warmup_iters": 1}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {
        "optimizer": {"name": "sgd", "lr": 0.3, "clip_grad": 0.5},
        "schedule": {**SCHEDULE, "lr_decay_style": "WSD", "lr_wsd_decay_iters": 3},
    },
    "sgd-without-momentum": {
        "optimizer": {"name": "sgd", "lr": 0.5, "sgd_momentum": 0.0},
        "schedule": {**SCHEDULE, "lr_decay_style": "linear"},
    },
    "adam": {
        "optimizer": {
            "lr": 3e-3,
            "clip_grad": 0.05,
            "decoupled_lr": 1e-3,
            "decoupled_weight_decay": False,
            "decay_norms": True,
            "decay_embeddings": False,
            "weight_decay_incr_style": "cosine",
            "start_weight_decay": 0.0,
            "end_weight_decay": 0.5,
        },
        "schedule": SCHEDULE,
    },
}
_EXPERTS = {"num_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}
OPTIMIZERS["muon"] = {
    "model": {"activation": "swiglu", "num_query_groups": 2},
    "optimizer": {"name": "muon", "lr": 3e-3, "clip_grad": 0.5, "weight_decay": 0.1, "decoupled_lr": 1e-3},
    "schedule": SCHEDULE,
}
OPTIMIZERS["muon-experts"] = {**OPTIMIZERS["muon"], "model": {**OPTIMIZERS["muon"]["model"], **_EXPERTS}}
LIMITS = {"sgd": OF_SGD, "adam": OF_ADAM, "muon": OF_ADAM, "muon-experts": OF_ADAM}
LAYOUTS = {
    "muon": (
        layout(tp=2, use_distributed_optimizer=False),
        layout(pp=2, dp=2),
        layout(tp=2, dp=2, sequence_parallel=True),
        layout(dp=2, use_distributed_optimizer=False),
    ),
    "muon-experts": (layout(dp=2, expert_model_parallel_size=2), layout(tp=2, dp=2, sequence_parallel=True)),
    "sgd": (layout(pp=2), layout(tp=2, use_distributed_optimizer=False)),
    "adam": (layout(tp=2, pp=2),),
}


Trained = TrainedTogether[tuple[str, ...]]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Of each optimizer one process's run and those at its layouts; of each resumption the first half."""
    jobs: dict[tuple[str, ...], JobSpec] = {}
    for name in selected(request, "name"):
        for number, parallelism in enumerate((layout(), *LAYOUTS[name])):
            batch = {"micro_batch_size": 4}
            jobs["layout", name, str(number)] = tiny_job(name, **OPTIMIZERS[name], batch=batch, parallelism=parallelism)
    jobs |= {("resumed", name): resumed_job(name, STEPS // 2) for name in selected(request, "resumed")}
    jobs |= {("moved", name): moved_job(name, STEPS // 2) for name in selected(request, "moved")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs, saved)


def saved(key: tuple[str, ...]) -> Path | None:
    """What is injected: of Adam and Muon the states at all layouts are saved in test_matrix.py."""
    return WEIGHTS_ALONE if key[0] == "layout" and key[1] != "sgd" else None


@pytest.fixture(scope="module")
def gone_on(request: pytest.FixtureRequest, ranks: Ranks, trained: Trained) -> ResumedTogether[tuple[str, ...]]:
    """The second half of each resumption."""
    jobs = {("resumed", name): resumed_job(name) for name in selected(request, "resumed")}
    jobs |= {("moved", name): moved_job(name, at=1) for name in selected(request, "moved")}
    return ResumedTogether(ranks, trained, jobs)


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Each resumption in one go."""
    jobs = {("resumed", name): resumed_job(name) for name in selected(request, "resumed")}
    jobs |= {("moved", name): moved_job(name) for name in selected(request, "moved")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("whole"), jobs, UNSAVED)


@pytest.mark.parametrize("name", LAYOUTS)
def test_losses_and_norms_are_those_of_one_process(name: str, trained: Trained) -> None:
    """The norm before clipping, too: it is over all stages and tensor ranks."""
    alone, *others = (trained["layout", name, str(number)] for number in range(1 + len(LAYOUTS[name])))
    assert values(alone, "train/loss")[STEPS] < values(alone, "train/loss")[1]
    for spread in others:
        for key in ("train/loss", "train/grad_norm"):
            assert values(spread, key) == pytest.approx(values(alone, key), rel=2e-5)
        assert weights_apart(alone, spread, LIMITS[name]) == {}


def test_the_norm_that_clips_is_over_the_experts_of_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    """megatron-core keeps them in an optimizer of their own, under a norm of its own."""
    model = {"num_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}
    sections = {
        "model": model,
        "optimizer": {"name": "sgd", "lr": 0.3, "clip_grad": 0.05},
        "schedule": {"train_iters": 4},
    }
    found = []
    for name, parallelism in {"alone": layout(), "ep2": layout(dp=2, expert_model_parallel_size=2)}.items():
        job = tiny_job(name, **sections, parallelism=parallelism)
        run = ranks.must_train(make_run(tmp_path, job), job)
        found.append(run)
    alone, spread = found
    assert min(values(alone, "train/grad_norm").values()) > 0.1
    assert losses(spread) == pytest.approx(losses(alone), rel=2e-5)
    assert values(spread, "train/grad_norm") == pytest.approx(values(alone, "train/grad_norm"), rel=1e-4)
    assert weights_apart(alone, spread, OF_SGD) == {}


RESUMED = {
    "sgd-sharded": ("sgd", layout(dp=2)),
    "sgd-plain": ("sgd", layout(use_distributed_optimizer=False)),
    "sgd-without-momentum": ("sgd-without-momentum", layout()),
    "adam": ("adam", layout(pp=2)),
    "muon-sharded": ("muon", layout(dp=2)),
    "muon-plain": ("muon", layout(use_distributed_optimizer=False)),
}
SAME_DECAY = {"weight_decay_incr_style": "constant", "start_weight_decay": None, "end_weight_decay": None}


def resumed_job(name: str, steps: int = STEPS) -> JobSpec:
    kind, parallelism = RESUMED[name]
    sections = {**OPTIMIZERS[kind], "parallelism": parallelism}
    sections["optimizer"] = {**sections["optimizer"], **SAME_DECAY}  # it would follow the length of the training
    sections["schedule"] = {**sections["schedule"], "train_iters": steps, "lr_decay_iters": STEPS}
    return tiny_job(name, **sections)


@pytest.mark.parametrize("resumed", RESUMED)
def test_resumption_is_bitwise(resumed: str, whole: Trained, gone_on: ResumedTogether[tuple[str, ...]]) -> None:
    """Half of the training, saved, and the rest: the losses of all of it in one go."""
    assert losses(gone_on["resumed", resumed]) == losses(whole["resumed", resumed])


MOVED = {
    "to-tensor-parallel": ("muon", layout(dp=2), layout(tp=2)),
    "to-pipeline": (
        "muon",
        layout(tp=2, use_distributed_optimizer=False),
        layout(pp=2, use_distributed_optimizer=False),
    ),
    "experts-to-one": ("muon-experts", layout(dp=2, expert_model_parallel_size=2), layout()),
}


def moved_job(name: str, steps: int = STEPS, at: int = 0) -> JobSpec:
    kind, *layouts = MOVED[name]
    schedule = {**SCHEDULE, "train_iters": steps, "lr_decay_iters": STEPS}
    sections = {**OPTIMIZERS[kind], "batch": {"micro_batch_size": 4}, "schedule": schedule}
    return tiny_job(kind, **sections, parallelism=layouts[at])


@pytest.mark.parametrize("moved", MOVED)
def test_muon_goes_on_at_another_layout(moved: str, whole: Trained, gone_on: ResumedTogether[tuple[str, ...]]) -> None:
    assert losses(gone_on["moved", moved]) == pytest.approx(losses(whole["moved", moved]), rel=2e-5)


def test_muon_learns_more_in_a_step_than_adam(real_text: list[str], ranks: Ranks, tmp_path: Path) -> None:
    """At the same rate: its updates are as large."""
    jobs = {
        name: tiny_job(
            name,
            model={"hidden_size": 64, "seq_length": 64, "activation": "swiglu", "vocab_size": None},
            data={"random_tokens": False, "blend": [{"path": real_text[0]}], "split": "1,0,0"},
            batch={"micro_batch_size": 8},
            optimizer={"name": name, "lr": 3e-3},
            schedule={"train_iters": 30, "lr_warmup_iters": 4},
        )
        for name in ("adam", "muon")
    }
    learners, ends = TrainedTogether(ranks, tmp_path, jobs, UNSAVED), {}
    for name in jobs:
        curve = losses(learners[name])
        ends[name] = sum(curve[step] for step in range(21, 31)) / 10
    assert ends["muon"] < ends["adam"] - 0.05


def test_another_learning_rate_goes_on_from_the_same_state(ranks: Ranks, tmp_path: Path) -> None:
    """megatron-core 0.19 would take the checkpoint's parameters for other ones."""
    job = tiny_job("rate", schedule={"train_iters": 3})
    run = ranks.must_train(make_run(tmp_path, job), job)
    changed = tiny_job("rate", schedule={"train_iters": 4}, optimizer={"lr": 5e-4})
    make_run(tmp_path, changed)
    ranks.must_train(run, changed, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [3]
    assert len(losses(run)) == 4
