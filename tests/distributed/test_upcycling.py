"""Experts that start from a dense model: at first the network computes what the dense one does, at any layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.trained_together import TrainedTogether, selected
from support.training import events, layout, losses, make_run, tiny_job, values

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from tests.unit.conversion import families
from tests.unit.conversion.upcycled_export import compared

DENSE: dict[str, Any] = {
    **{"activation": "swiglu", "normalization": "RMSNorm", "add_bias_linear": False, "ffn_hidden_size": 48},
    "untie_embeddings_and_output_weights": True,
}
EXPERTS = {"num_experts": 4, "moe_aux_loss_coeff": 0.0}
VALIDATION = {"eval_iters": 2, "eval_at_end": True, "eval_interval": 100}
NARROW = {
    **{"num_experts": 8, "moe_router_topk": 4, "moe_ffn_hidden_size": 24, "moe_layer_freq": [0, 1]},
    **{"moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5},
}
"""Two experts share a copy out; only one layer has some."""


@pytest.fixture(scope="module")
def source(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Four steps of a dense model under TP2."""
    job = tiny_job("dense", model=DENSE, schedule={"train_iters": 4}, evaluation=VALIDATION, parallelism=layout(tp=2))
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), job), job, inject=WEIGHTS_ALONE)


def upcycled(name: str, source: Path, model: dict[str, Any], **sections: Any) -> Any:
    return tiny_job(
        name,
        model={**DENSE, **EXPERTS, **model},
        evaluation={**VALIDATION, "eval_at_start": True},
        **{
            "schedule": {"train_iters": 2, "lr_warmup_iters": 0},
            "checkpoint": {"pretrained": str(source), "upcycle": True},
            "batch": {"micro_batch_size": 4},
            **sections,
        },
    )


LAYOUTS: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "whole": (
        {},
        (layout(), layout(dp=2, expert_model_parallel_size=2), layout(tp=2, pp=2, sequence_parallel=True)),
    ),
    "all-chosen": ({"moe_router_pre_softmax": True, "moe_router_topk": 4, "activation": "swiglu"}, (layout(),)),
    "narrow": (
        NARROW,
        (
            layout(),
            layout(tp=2, sequence_parallel=True, expert_tensor_parallel_size=1, expert_model_parallel_size=2),
            layout(tp=2, sequence_parallel=True),
        ),
    ),
}


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, source: RunDir, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[tuple[str, int]]:
    """Each kind at each of its layouts."""
    jobs = {
        (kind, index): upcycled(f"{kind}-{index}", source.path, LAYOUTS[kind][0], parallelism=parallelism)
        for kind in selected(request, "kind")
        for index, parallelism in enumerate(LAYOUTS[kind][1])
    }
    return TrainedTogether(ranks, tmp_path_factory.mktemp("upcycled"), jobs, UNSAVED)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_at_first_it_computes_what_the_dense_model_does(
    source: RunDir, trained: TrainedTogether[tuple[str, int]], kind: str
) -> None:
    """The weights of a token's experts add up to 1, or the second matrices make up for that: the losses of the first
    evaluation are those of the dense model. What follows is the same at every layout.
    """
    [end] = values(source, "validation/loss").values()
    found = []
    for index in range(len(LAYOUTS[kind][1])):
        run = trained[kind, index]
        assert values(run, "validation/loss")[0] == pytest.approx(end, rel=2e-6)
        found.append(losses(run))
        assert found[-1] == pytest.approx(found[0], rel=2e-5)
        [event] = events(run, "pretrained")
        assert event["fresh"] == ["the routers of experts"]
        assert event["from_run"] == "dense/run"


def test_each_expert_is_its_part_of_the_dense_mlp(ranks: Ranks, tmp_path: Path, source: RunDir) -> None:
    """By megatron-core's order: parts one after the other, and again; with rows of the router that are the same."""
    job = upcycled(
        "parts",
        source.path,
        NARROW,
        schedule={"train_iters": 1, "lr_warmup_iters": 0},
        optimizer={"lr": 1e-14, "weight_decay": 0.0},
        parallelism=layout(dp=2, expert_model_parallel_size=2),
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=WEIGHTS_ALONE)
    dense, ours = (StoredWeights(committed(each)[-1].path) for each in (source, run))
    fc1, fc2 = (dense.read(f"decoder.layers.mlp.linear_{name}.weight", (1,)) for name in ("fc1", "fc2"))
    gate, up = fc1.chunk(2)
    experts = "decoder.layers.1.mlp.experts.experts.linear_"
    for expert in range(8):
        part = slice(24 * (expert % 2), 24 * (expert % 2) + 24)
        first = ours.read(f"{experts}fc1.weight", (expert,))
        torch.testing.assert_close(first, torch.cat([gate[part], up[part]]), rtol=0, atol=1e-12)
        torch.testing.assert_close(ours.read(f"{experts}fc2.weight", (expert,)), fc2[:, part] * (2 / 2.5))
    router = ours.read("decoder.layers.1.mlp.router.weight", ())
    assert router[::2].equal(router[1::2])
    assert not router[0].equal(router[2])
    for name in ("self_attention.linear_qkv.weight", "mlp.linear_fc1.weight"):
        assert ours.read(f"decoder.layers.0.{name}", ()).equal(dense.read(f"decoder.layers.{name}", (0,)))


def test_layers_that_predict_further_tokens_may_be_new(ranks: Ranks, tmp_path: Path, source: RunDir) -> None:
    """Those of a job have experts, of which the dense model has no MLP."""
    job = upcycled("further", source.path, {"mtp_num_layers": 1})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
    [end] = values(source, "validation/loss").values()
    assert values(run, "validation/loss")[0] == pytest.approx(end, rel=2e-6)


def test_layers_with_linear_attention(ranks: Ranks, tmp_path: Path) -> None:
    """Each has keys of its own in a dense model too."""
    linear = {
        **{"linear_attention_freq": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    }
    short = {"train_iters": 2, "lr_warmup_iters": 0}
    job = tiny_job("linear", model={**DENSE, **linear}, schedule=short, evaluation=VALIDATION)
    dense = ranks.must_train(make_run(tmp_path, job), job, inject=WEIGHTS_ALONE)
    run = make_run(tmp_path, own := upcycled("experts", dense.path, {**linear, "moe_layer_freq": [0, 1]}))
    ranks.must_train(run, own, inject=UNSAVED)
    [end] = values(dense, "validation/loss").values()
    assert values(run, "validation/loss")[0] == pytest.approx(end, rel=2e-6)


@pytest.mark.parametrize(
    ("model", "upcycle", "code"),
    [
        ({}, False, "checkpoint.upcycle: true"),
        ({"ffn_hidden_size": 96}, True, "(2, 96, 32) there and (2, 192, 32) here"),
        ({"num_attention_heads": 2}, True, "model.num_attention_heads is 4 there and 2 here"),
    ],
)
def test_what_does_not_fit_is_refused(
    ranks: Ranks, tmp_path: Path, source: RunDir, model: dict[str, Any], upcycle: bool, code: str
) -> None:
    start = {"pretrained": str(source.path), "upcycle": upcycle}
    job = upcycled("refused", source.path, model, checkpoint=start)
    run = make_run(tmp_path, job)
    assert ranks.start(run, job).wait() == 1
    record = json.loads(run.exit_record("test", 0).read_text())
    assert record["cause"] == "user_error"
    assert code in record["message"]


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistral")
    families.make(folder, "mistral")
    return folder / "mistral"


def test_a_mistral_becomes_a_mixtral(ranks: Ranks, mistral: Path) -> None:
    """Out to transformers, its logits are those of the dense model that it started from."""
    fields = load_resolved(RunDir(mistral / "run").resolved()).model.model_dump(exclude_unset=True)
    job = tiny_job(
        "mixtral",
        model={**fields, **EXPERTS},
        schedule={"train_iters": 1, "lr_warmup_iters": 0},
        optimizer={"lr": 1e-14, "weight_decay": 0.0},
        checkpoint={"pretrained": str(mistral / "run"), "upcycle": True},
    )
    run = ranks.must_train(make_run(mistral, job), job, inject=WEIGHTS_ALONE)
    said = compared(mistral / "theirs", run)
    assert said["type"] == "mixtral"
    assert said["apart"] < 1e-5 * said["spread"]
