"""A BERT learns made-up MNLI and RACE in bf16, as it does in fp32, on both layer backends and under TP2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.examples import write_mnli, write_race
from support.faults import Ranks
from support.measured import Measured, Meter, has_layers, needs_layers
from support.training import four_layer_job, layout, make_run, values

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

MODEL: dict[str, Any] = {
    **{"architecture": "bert", "num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 32},
    **{"position_embedding_type": "learned_absolute", "vocab_size": 300, "init_method_std": 0.05},
}
STEPS = 60
TASKS = ("mnli", "race")
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fp32": ("torch", "fp32", {}),
    "torch": ("torch", "bf16", {}),
    "te": ("transformer_engine", "bf16", {}),
    "te-tp2": ("transformer_engine", "bf16", layout(tp=2, sequence_parallel=True)),
}
"""Layers, numbers, parallelism."""


def task_job(task: str, kind: str, folder: str) -> JobSpec:
    layers, dtype, parallelism = KINDS[kind]
    files = {
        "mnli": {"train": f"{folder}/train.tsv", "validation": [f"{folder}/dev.tsv"]},
        "race": {"train": f"{folder}/train", "validation": f"{folder}/dev"},
    }
    return four_layer_job(
        f"{task}-{kind}",
        task={"name": task, **files[task]},
        model=MODEL,
        batch={"micro_batch_size": 4, "global_batch_size": 16},
        data={"random_tokens": False},
        parallelism=parallelism,
        precision={"dtype": dtype},
        runtime={"layers": layers},
        optimizer={"lr": 2e-3},
        schedule={"train_iters": STEPS, "lr_warmup_iters": 4},
        evaluation={"eval_interval": STEPS, "eval_iters": 10, "eval_at_start": True},
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file; `text` stands for the folder of the tasks' files."""
    return [task_job(task, kind, text) for task in TASKS for kind in KINDS]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tasks' files, with a rule that a small network finds."""
    folder = tmp_path_factory.mktemp("files")
    write_mnli(folder / "train.tsv", 300)
    write_mnli(folder / "dev.tsv", 21, seed=2)
    write_race(folder / "train", 60)
    write_race(folder / "dev", 7, seed=3)
    return str(folder)


@pytest.fixture(scope="module")
def trained(trainer: Meter, files: str) -> dict[str, Measured]:
    """Every job whose layers there are, by its name."""
    return trainer.measure_all(job for job in jobs(files) if has_layers(job.runtime.layers))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fp32"])
@pytest.mark.parametrize("task", TASKS)
def test_bf16_learns_as_fp32_does(task: str, kind: str, trained: dict[str, Measured]) -> None:
    needs_layers(KINDS[kind][0])
    exact, found = trained[f"{task}-fp32"], trained[f"{task}-{kind}"]
    for each in (exact, found):
        assert each.outcome == "measured", each.message
    first, last = (f"{found.losses[step]:.4f} ({exact.losses[step]:.4f} in fp32)" for step in (0, -1))
    print(f"\nRESULT {task} {kind} bf16: loss {first} to {last}")
    # The same weights and examples: on the CPU 5e-4 apart.
    assert abs(found.losses[0] / exact.losses[0] - 1) < 5e-3
    assert abs(found.grad_norms[0] / exact.grad_norms[0] - 1) < 3e-2
    for each in (exact, found):
        assert each.losses[-1] < each.losses[0] / 10


@pytest.mark.parametrize("task", TASKS)
def test_held_out_examples_are_answered(task: str, ranks: Ranks, files: str, tmp_path: Path) -> None:
    job = task_job(task, "te" if has_layers("transformer_engine") else "torch", files)
    run = ranks.must_train(make_run(tmp_path, job), job)
    accuracy, loss = values(run, "validation/accuracy"), values(run, "validation/loss")
    print(f"\nRESULT {task} {job.runtime.layers} bf16: losses {loss}, accuracies {accuracy}")
    assert loss[STEPS] < loss[0] / 10
    assert accuracy[STEPS] > 0.9
