"""Hyperparameters that are probably slips draw a warning; those of published trainings draw none."""

from __future__ import annotations

import pytest
from support.shipped import SHIPPED

from orchestrator.planning.checks.unusual_values import unusual_values
from orchestrator.spec.loading import load_job

EXPERTS = ("num_experts=4", "add_bias_linear=true", "sequence_parallel=true", "expert_tensor_parallel_size=1")
SGD = ("optimizer.name=sgd", "adam_beta2=null")


def found(*overrides: str, job: str = "gpt-tiny-cpu") -> list[str]:
    return [problem.paths[0] for problem in unusual_values(load_job([SHIPPED[job]], overrides).job)]


@pytest.mark.parametrize(
    ("overrides", "paths"),
    [
        (("lr=30",), ["optimizer.lr"]),
        (("lr=0.3", "min_lr=0"), ["optimizer.lr"]),
        (("lr=1e-12", "min_lr=0"), ["optimizer.lr"]),
        ((*SGD, "lr=30"), ["optimizer.lr"]),
        (("decoupled_lr=3",), ["optimizer.decoupled_lr"]),
        (("weight_decay=10",), ["optimizer.weight_decay"]),
        (("adam_eps=0.1",), ["optimizer.adam_eps"]),
        (("init_method_std=2",), ["model.init_method_std"]),
        (("exp_avg_sq_dtype=bf16", "adam_beta2=0.999"), ["optimizer.exp_avg_sq_dtype"]),
        (("exp_avg_sq_dtype=bf16", "exp_avg_dtype=bf16", "adam_beta2=0.95"), []),
        (
            ("model.hidden_dropout=0.9", "model.attention_dropout=0.9"),
            ["model.hidden_dropout", "model.attention_dropout"],
        ),
        (EXPERTS, ["model.add_bias_linear"]),
        ((*EXPERTS, "activation=quick_geglu"), []),
        (("num_experts=4", "sequence_parallel=true", "add_bias_linear=false"), []),
        # Published: muP's GPT, a fine-tuning with LoRA, SGD of nanoGPT's size.
        (("lr=0.02", "weight_decay=0.3"), []),
        (("lr=1e-6", "min_lr=0"), []),
        ((*SGD, "lr=1"), []),
    ],
)
def test_what_is_far_from_usual(overrides: tuple[str, ...], paths: list[str]) -> None:
    assert found(*overrides) == paths


def test_the_warning_says_what_is_usual_and_why() -> None:
    [problem] = unusual_values(load_job([SHIPPED["gpt-tiny-cpu"]], ["lr=30"]).job)
    said = "30 is far above the usual values, 1e-6 to 1e-2: Adam changes a weight by about lr in each step"
    assert said in problem.message


@pytest.mark.parametrize("job", SHIPPED)
def test_shipped_jobs_have_usual_values(job: str) -> None:
    assert found(job=job) == []
