"""Low-rank adapters: the same under tensor, sequence and pipeline parallelism, with everything else frozen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron.core import dist_checkpointing
from support.counting import COUNTED
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.trained_together import ResumedTogether, TrainedTogether
from support.training import events, layout, losses, make_run, tiny_job, values

from orchestrator.planning.flops import model_flops
from orchestrator.planning.parameters import parameters, stage_parameters
from orchestrator.planning.parameters.trainable import trained_parameters
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir, read_lines

MODEL = {
    **{"hidden_size": 64, "seq_length": 64, "activation": "swiglu", "num_query_groups": 2},
    "normalization": "RMSNorm",
}
EVALUATION = {"eval_interval": 100, "eval_iters": 2, "eval_at_end": True, "eval_at_start": True}
STEPS = 3


@pytest.fixture(scope="module")
def source(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = tiny_job("source", model=MODEL, schedule={"train_iters": 1, "lr_warmup_iters": 0}, evaluation=EVALUATION)
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), job), job, inject=WEIGHTS_ALONE)


def adapted(name: str, source: RunDir, steps: int = STEPS, lora: dict[str, Any] | None = None, **sections: Any) -> Any:
    schedule = {"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 1}
    return tiny_job(
        name,
        batch={"micro_batch_size": 4},
        model={**MODEL, "lora": {"rank": 4, "alpha": 8.0, **(lora or {})}},
        optimizer={"lr": 5e-2, "clip_grad": 0.05},
        evaluation=EVALUATION,
        **{"schedule": schedule, "checkpoint": {"pretrained": str(source.path)}, **sections},
    )


@pytest.fixture(scope="module")
def alone(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, source: RunDir) -> RunDir:
    job = adapted("alone", source)
    return ranks.must_train(make_run(tmp_path_factory.mktemp("alone"), job), job)


def test_every_layout_learns_the_same_and_only_adapters_learn(
    ranks: Ranks, tmp_path: Path, source: RunDir, alone: RunDir
) -> None:
    job = adapted("alone", source)
    start, end = values(alone, "validation/loss").values()
    assert start == pytest.approx(values(source, "validation/loss")[1], rel=1e-5)  # at first adapters add nothing
    assert abs(end - start) > 1e-3
    for name, parallelism in {
        "tp2-sp": layout(tp=2, sequence_parallel=True, use_distributed_optimizer=False),
        "tp2-pp2": layout(tp=2, pp=2),
    }.items():
        spread_job = adapted(name, source, parallelism=parallelism)
        spread = ranks.must_train(make_run(tmp_path, spread_job), spread_job, inject=UNSAVED)
        for key in ("train/loss", "train/grad_norm", "validation/loss"):
            assert values(spread, key) == pytest.approx(values(alone, key), rel=5e-5), (name, key)
        assert events(spread, "started")[0]["parameters"] == stage_parameters(spread_job, 256)[0]
    assert events(alone, "started")[0]["parameters"] == parameters(job, 256).total
    assert 0 < trained_parameters(job, (0,))[0] < 0.2 * parameters(job, 256).total

    saved = dist_checkpointing.load_tensors_metadata(str(committed(alone)[-1].path))
    state = {key for key in saved if key.startswith("optimizer.")}
    assert len(state) == 3 * 2 * 4  # main copy and moments of two matrices beside each of four; layers are stacked
    assert all(".lora." in key for key in state)


MERGED = """
import orchestrator.runtime.__main__ as program
from orchestrator.run_directory.events.types import Unknown
from orchestrator.runtime.callbacks.evaluation import evaluate
from orchestrator.runtime.processes.exits import Outcome
from orchestrator.runtime.network.lora import merge_adapters

def train(session, callbacks):
    adapted = sum(len(module.state_dict()) for module in session.network.modules)
    for module in session.network.modules:
        merge_adapters(module)
    merged = sum(len(module.state_dict()) for module in session.network.modules)
    session.event(Unknown(stored_name="merged", other={"before": adapted, "after": merged}))
    evaluate(session)
    return Outcome("completed")

program.train = train
"""


def test_merged_into_the_weights_they_do_the_same(
    ranks: Ranks, tmp_path: Path, source: RunDir, alone: RunDir, inject: Callable[[str], Path]
) -> None:
    """A checkpoint of one process, read under TP2, merged there and evaluated."""
    run = RunDir(shutil.copytree(alone.path, tmp_path / "alone" / "run"))
    end = values(run, "validation/loss")[3]
    spread = adapted("alone", source, parallelism=layout(tp=2))
    make_run(tmp_path, spread)
    merged = ranks.must_train(run, spread, launch_id="second", inject=inject(MERGED))
    assert values(merged, "validation/loss")[3] == pytest.approx(end, rel=1e-5)
    assert [record["iteration"] for record in read_lines(run.metrics_file)].count(3) == 3
    [event] = events(run, "merged")
    assert event["before"] - event["after"] == 2 * 4 * 2


@pytest.mark.parametrize("modules", [["linear_qkv", "linear_fc2"], ["linear_fc1"]])
def test_the_products_of_a_step_are_those_that_plan_counts(
    ranks: Ranks, tmp_path: Path, source: RunDir, inject: Callable[[str], Path], modules: list[str]
) -> None:
    job = adapted("counted", source, steps=1, lora={"target_modules": modules})
    job = job.model_copy(update={"evaluation": tiny_job("none").evaluation})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(COUNTED))
    model, tokens = job.model, job.global_batch_size * job.model.seq_length
    scores = model.num_layers * 12 - (0 if "linear_qkv" in modules else 8)  # of the first layer only the forward pass
    attention = tokens * scores * model.hidden_size * model.seq_length
    assert events(run, "counted")[0]["products"] + attention == model_flops(job, tokens, 256)


def test_products_where_attention_and_mlp_have_one_input(
    ranks: Ranks, tmp_path: Path, inject: Callable[[str], Path]
) -> None:
    """Adapters of attention do not lead to the MLP of their layer."""
    parallel = {**MODEL, "parallel_residual": "one_norm"}
    begun = tiny_job("begun", model=parallel, schedule={"train_iters": 1, "lr_warmup_iters": 0})
    source = ranks.must_train(make_run(tmp_path, begun), begun, inject=WEIGHTS_ALONE)
    job = tiny_job(
        "counted",
        model={**parallel, "lora": {"rank": 4, "target_modules": ["linear_qkv"]}},
        schedule={"train_iters": 1, "lr_warmup_iters": 0},
        checkpoint={"pretrained": str(source.path)},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(COUNTED))
    model, tokens = job.model, job.global_batch_size * job.model.seq_length
    attention = tokens * model.num_layers * 12 * model.hidden_size * model.seq_length
    assert events(run, "counted")[0]["products"] + attention == model_flops(job, tokens, 256)


def test_full_recomputation_and_dropout_resume_bitwise(ranks: Ranks, tmp_path: Path, source: RunDir) -> None:
    """Saved on the way under TP2 with sequence parallelism, and the rest: the losses of all of it in one go."""
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    sections = {"parallelism": layout(tp=2, sequence_parallel=True), "runtime": recompute}
    lora = {"lora_dropout": 0.2, "target_modules": ["linear_proj", "linear_fc1"]}
    job = adapted("resumed", source, lora=lora, **sections)
    jobs = {
        "whole": job,
        "first": adapted("resumed", source, steps=1, lora=lora, **sections),
        "plain": adapted("plain", source, lora={**lora, "lora_dropout": 0.0}, **sections),
    }
    trained = TrainedTogether(ranks, tmp_path, jobs)
    whole, plain = (losses(trained[name]) for name in ("whole", "plain"))
    assert losses(ResumedTogether(ranks, trained, {"first": job})["first"]) == whole
    assert plain != whole
