"""Mixture of experts gives one process's losses and weights at every layout, and checkpoints that are read at every
other one.

Grouped matrix products are a GPU's: tests/gpu/test_experts.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.counting import COUNTED
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.trained_together import ResumedTogether, TrainedTogether, selected
from support.trained_weights import weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.planning.flops import model_flops
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

MODEL: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "seq_length": 32,
    "activation": "swiglu",
    "add_bias_linear": False,
    "num_experts": 4,
    "moe_ffn_hidden_size": 48,
    "moe_shared_expert_intermediate_size": 40,
    "moe_aux_loss_coeff": 0.05,
    "moe_z_loss_coeff": 0.01,
}
STEPS = 2
BATCH = 4
"""Two micro-batches of one process: of replicas, one each."""
ALONE = {"moe_router_pre_softmax": True}
"""The weight of an expert that is chosen alone is learned."""
EP2 = {"expert_model_parallel_size": 2}
TP2 = {"tp": 2, "sequence_parallel": True}
WHOLE = {"expert_tensor_parallel_size": 1}
BIASED = {
    **{"moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5},
    **{"num_experts": 8, "moe_router_num_groups": 2, "moe_router_group_topk": 1, "moe_router_group_score_topk": 1},
    **{"moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.01},
    **{"moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0, "moe_z_loss_coeff": None},
}
GATED = {"moe_shared_expert_gate": True}
MODULES = {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "layernorm", "moe"]}
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def experts_job(
    name: str,
    model: dict[str, Any] | None = None,
    *,
    steps: int = STEPS,
    runtime: dict[str, Any] | None = None,
    micro_batch_size: int = 2,
    **degrees: Any,
) -> JobSpec:
    return tiny_job(
        name,
        model={**MODEL, **(model or {})},
        parallelism=layout(**degrees),
        schedule={"train_iters": steps, "lr_decay_style": "constant", "lr_warmup_iters": 0},
        runtime=runtime or {},
        batch={"micro_batch_size": micro_batch_size, "global_batch_size": BATCH},
    )


class Case(NamedTuple):
    """A layout, and how its tokens come to their experts."""

    degrees: dict[str, Any]
    dispatcher: str = "alltoall"
    runtime: dict[str, Any] | None = None


LAYOUTS = {
    "ep2-gathered": Case({"dp": 2, **EP2}, "allgather"),
    "ep2-plain-optimizer-recomputed": Case({"dp": 2, **EP2, "use_distributed_optimizer": False}, runtime=RECOMPUTED),
    "tp2-ep2": Case({**TP2, "dp": 2, **EP2}),
    "tp2-ep2-gathered": Case({**TP2, "dp": 2, **EP2}, "allgather", MODULES),
    "tp2-ep2-whole-experts": Case({**TP2, **EP2, **WHOLE}),
    "tp2-whole-experts": Case({**TP2, **WHOLE}, "allgather"),
    "cp2-ep2": Case({"context_parallel_size": 2, **EP2}),
    "pp2-ep2": Case({"pp": 2, "dp": 2, **EP2}),
}
"""Tokens that come to experts spread over replicas, or split, by the usual dispatcher alone: test_matrix.py."""


LOAD_LOSSES = [f"train/moe/{kind}load_balancing_loss" for kind in ("", "seq_", "global_")]
METRICS = {
    "train/loss": 1e-5,
    "train/grad_norm": 1e-5,
    "train/moe/load_balancing_loss": 1e-5,
    "train/moe/z_loss": 1e-5,
}


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # The second stage has no experts, and the balance is that of each sequence, whatever micro-batch it is in.
    "dense-stage": (
        {
            "moe_layer_freq": [1, 0],
            "activation": "gelu",
            "add_qkv_bias": True,
            "moe_shared_expert_intermediate_size": None,
            "moe_router_load_balancing_type": "seq_aux_loss",
        },
        {"pp": 2, "dp": 2, **EP2, "micro_batch_size": 1},
    ),
    "dropped-tokens": (
        {"moe_router_score_function": "sigmoid", "moe_expert_capacity_factor": 1.0, "moe_router_dtype": "fp32"},
        {"dp": 2, **EP2},
    ),
    # Without a loss: what a step counts moves the bias by which the next one chooses, among experts of one group.
    "biased": (BIASED, {"pp": 2, "dp": 2, **EP2}),
    "biased-tp2-ep2": (BIASED, {**TP2, "dp": 2, **EP2, "runtime": RECOMPUTED}),
    "gated-tp2": ({**GATED, "moe_router_pre_softmax": True, "moe_router_topk_scaling_factor": 1.5}, TP2),
    "gated-cp2-ep2": (GATED, {"context_parallel_size": 2, **EP2}),
    # The loss over all micro-batches so far is that of each where there is one.
    "global": ({"moe_router_load_balancing_type": "global_aux_loss"}, {"dp": 4, **EP2}),
    "several-losses": (
        {
            "moe_router_load_balancing_type": ["seq_aux_loss", "global_aux_loss"],
            "moe_aux_loss_coeff": [0.01, 0.05],
        },
        {**TP2, "dp": 2, **EP2},
    ),
    "assigned": (
        {
            "moe_router_load_balancing_type": "sinkhorn",
            "moe_aux_loss_coeff": 0.0,
            "moe_z_loss_coeff": None,
            "moe_router_topk": 1,
        },
        {"dp": 2, **EP2},
    ),
}


def variant_jobs(name: str) -> dict[tuple[str, ...], JobSpec]:
    """A variant in one process and spread over ranks."""
    model, degrees = VARIANTS[name]
    # Of a global batch, so that each replica has one micro-batch: the whole batch is balanced at once.
    whole = "global_aux_loss" in model.get("moe_router_load_balancing_type", "")
    sizes = [BATCH, BATCH // degrees["dp"]] if whole else [2, 2]
    return {
        (name, "one"): experts_job("one", model, micro_batch_size=sizes[0]),
        (name, "spread"): experts_job("spread", model, **{"micro_batch_size": sizes[1], **degrees}),
    }


Trained = TrainedTogether[tuple[str, ...]]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The reference, each layout's run and the two of each variant, of which nothing goes on."""
    jobs: dict[tuple[str, ...], JobSpec] = {("reference",): experts_job("one")}
    for name in selected(request, "name"):
        if name in VARIANTS:
            jobs |= variant_jobs(name)
        if name in LAYOUTS:
            case = LAYOUTS[name]
            model = {"moe_token_dispatcher_type": case.dispatcher}
            jobs[(name,)] = experts_job(name, model, runtime=case.runtime, **case.degrees)
    return TrainedTogether(ranks, tmp_path_factory.mktemp("experts"), jobs, saved)


STATE_SAVED = ("ep2-plain-optimizer-recomputed", "cp2-ep2")
"""With the state of the optimizers of experts and of all else; at other layouts what goes on from a checkpoint has
saved it.
"""


def saved(key: tuple[str, ...]) -> Path | None:
    """What is injected."""
    return None if key[0] in STATE_SAVED else WEIGHTS_ALONE


@pytest.fixture(scope="module")
def reference(trained: Trained) -> RunDir:
    return trained["reference",]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, trained: Trained, reference: RunDir) -> None:
    run = trained[name,]
    for metric, tolerance in METRICS.items():
        assert largest_difference(values(reference, metric), values(run, metric)) < tolerance, metric
    assert weights_apart(reference, run) == {}


def test_balance_is_measured(reference: RunDir) -> None:
    """Both are averages over layers, micro-batches and replicas, without their weights: 1 would be perfectly even, and
    ln(4)² is what four equal logits near 0 have.
    """
    assert 0.99 < values(reference, "train/moe/load_balancing_loss")[1] < 1.5
    assert 1.8 < values(reference, "train/moe/z_loss")[1] < 2.1


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, trained: Trained) -> None:
    alone, spread = trained[name, "one"], trained[name, "spread"]
    assert largest_difference(losses(alone), losses(spread)) < 1e-5
    measured = [metric for metric in LOAD_LOSSES if values(alone, metric)]
    assert len(measured) == len(variant_jobs(name)[name, "one"].model.auxiliary_losses)
    for metric in measured:
        assert largest_difference(values(alone, metric), values(spread, metric)) < 1e-5, metric
    assert weights_apart(alone, spread) == {}


def test_a_bias_follows_the_load(ranks: Ranks, tmp_path: Path) -> None:
    """Each step moves each expert's bias once, whatever the number of micro-batches, and the checkpoint has it."""
    job = experts_job("biased", BIASED, steps=1, micro_batch_size=1, dp=2, **EP2)
    run = ranks.must_train(make_run(tmp_path, job), job)
    stored = StoredWeights(run.checkpoint(1))
    for layer in range(job.model.num_layers):
        bias = stored.read("decoder.layers.mlp.router.expert_bias", (layer,))
        assert str(bias.dtype) == "torch.float32"
        assert (
            {-1, 1} <= {round(value / job.model.moe_router_bias_update_rate) for value in bias.tolist()} <= {-1, 0, 1}
        )


def test_what_is_dropped_is_not_computed(ranks: Ranks, tmp_path: Path, inject: Callable[[str], Path]) -> None:
    """At a quarter of the even share every expert is full: the products of a step are those that plan counts."""
    job = experts_job("full", {"moe_expert_capacity_factor": 0.25, "num_experts": 2, "moe_router_topk": 1, **ALONE})
    job = job.model_copy(update={"schedule": job.schedule.model_copy(update={"train_iters": 1})})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(COUNTED))
    tokens = job.global_batch_size * job.model.seq_length
    attention = tokens * 12 * job.model.num_layers * job.model.hidden_size * job.model.seq_length
    assert events(run, "counted")[0]["products"] + attention == model_flops(job, tokens, 256)


MOVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "spread-to-one": ({"dp": 2, **EP2}, {}),
    "one-to-whole": ({}, {**TP2, **EP2, **WHOLE}),
    "tensor-to-pipeline": ({**TP2, "dp": 2, **EP2}, {"pp": 2, "dp": 2, **EP2}),
}


EARLIER = """
from orchestrator.runtime.checkpointing import checkpointer
del checkpointer.CONTENT["chained_optim_avoid_prefix"]
"""
"""Saves as earlier versions did: the keys number the optimizers of dense weights and of experts."""
FROM_EARLIER = "spread-to-one"


def moved_job(name: str, leg: int) -> JobSpec:
    return experts_job("moved", steps=(STEPS // 2, STEPS)[leg], **MOVES[name][leg])


@pytest.fixture(scope="module")
def gone_on(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> ResumedTogether[tuple[str, ...]]:
    """Trainings in two halves."""
    halves = {("moved", name): moved_job(name, 0) for name in selected(request, "move") if name != FROM_EARLIER}
    halves |= {("stopped", name): dropping_job(name, STEPS // 2) for name in selected(request, "kind")}
    trained = TrainedTogether(ranks, tmp_path_factory.mktemp("halves"), halves)
    jobs = {("moved", name): moved_job(name, 1) for name in selected(request, "move") if name != FROM_EARLIER}
    jobs |= {("stopped", name): dropping_job(name) for name in selected(request, "kind")}
    return ResumedTogether(ranks, trained, jobs)


@pytest.mark.parametrize("move", MOVES)
def test_resumed_at_another_layout(
    move: str,
    ranks: Ranks,
    gone_on: ResumedTogether[tuple[str, ...]],
    reference: RunDir,
    tmp_path: Path,
    inject: Callable[[str], Path],
) -> None:
    if move == FROM_EARLIER:
        first, second = moved_job(move, 0), moved_job(move, 1)
        run = ranks.must_train(make_run(tmp_path, first), first, inject=inject(EARLIER))
        ranks.must_train(make_run(tmp_path, second), second, launch_id="second")
    else:
        run = gone_on["moved", move]
    keys = StoredWeights(run.checkpoint(STEPS // 2)).keys()
    assert any(key.startswith("chained_1.") for key in keys) == (move == FROM_EARLIER)
    assert [event["iteration"] for event in events(run, "resumed")] == [STEPS // 2]
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert weights_apart(reference, run) == {}


DROPPING: dict[str, dict[str, Any]] = {"loss": {}, "bias": BIASED | GATED}


def dropping_job(kind: str, steps: int = STEPS) -> JobSpec:
    dropped = {**DROPPING[kind], "hidden_dropout": 0.1, "attention_dropout": 0.1}
    return experts_job("dropping", dropped, steps=steps, dp=2, **EP2)


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    jobs = {("whole", kind): dropping_job(kind) for kind in selected(request, "kind")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("whole"), jobs, UNSAVED)


@pytest.mark.parametrize("kind", DROPPING)
def test_resumed_at_the_same_layout_is_bitwise(
    kind: str, whole: Trained, gone_on: ResumedTogether[tuple[str, ...]]
) -> None:
    assert losses(gone_on["stopped", kind]) == losses(whole["whole", kind])


GENERATE = Path(__file__).parents[1] / "unit" / "inference" / "generate_program.py"
GENERATED = ("likeliest", "cached", "drawn", "of each its own")
"""Greedy tokens, drawn ones, and beams. What else a batch may hold: test_generation.py."""


def test_generation_is_that_of_one_process(ranks: Ranks, reference: RunDir, tmp_path: Path) -> None:
    """Experts that were spread over replicas are all on each tensor-parallel rank, whole or in parts."""
    written = []
    for name, degrees in {"one": {}, "whole": {**TP2, **EP2, **WHOLE}, "split": TP2}.items():
        job = experts_job(name, **degrees)
        out = tmp_path / name
        out.mkdir()
        (out / "job.json").write_text(dump_resolved(job))
        arguments = (str(out / "job.json"), str(out), *GENERATED, *(["recomputed"] if name == "one" else []))
        assert ranks.starter.start(reference.path, job.world_size, *arguments, program=GENERATE).wait() == 0
        written.append(json.loads((out / "rank-0.json").read_text()))
    one, whole, split = written
    assert one.pop("recomputed") == one["cached"], "without the cache"
    assert one == whole
    assert one == split
