"""What is planned for a task: its head instead of an output layer, and four sequences for a question of RACE."""

from __future__ import annotations

from typing import Any

import pytest
from support.problems import codes

from orchestrator.planning.flops import formula, model_flops
from orchestrator.planning.hardware.devices import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.plan import make_plan
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec

BERT = {"architecture": "bert", "position_embedding_type": "learned_absolute", "vocab_size": 30000, "seq_length": 128}


def job_of(make_job: Any, task: str | None, **sections: Any) -> JobSpec:
    more = {"task": {"name": task, "train": ["nowhere"]}, "data": {"random_tokens": False}} if task else {}
    job: JobSpec = make_job(**{"model": BERT, **more, **sections})
    return job


@pytest.mark.parametrize(("task", "scores"), [("mnli", 3), ("race", 1)])
@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("pp", [1, 2])
def test_the_head_is_counted_and_no_output_layer(make_job: Any, task: str, scores: int, untied: bool, pp: int) -> None:
    """Built models are counted on real ranks: tests/distributed/test_tasks.py and test_matrix.py."""
    model = {**BERT, "untie_embeddings_and_output_weights": untied}
    counted = parameters(job_of(make_job, task, model=model, parallelism={"pipeline_model_parallel_size": pp}), 30080)
    h, head = 64, 64 * 64 + 64 + scores * (64 + 1)
    layers = 4 * counted.per_layer + 2 * h
    assert (
        counted.total
        == sum(rank.parameters for rank in counted.per_rank)
        == 30080 * h + 128 * h + 2 * h + layers + head
    )
    assert counted.output == head


def test_a_question_is_four_sequences(make_job: Any) -> None:
    mnli, race = (make_plan(job_of(make_job, task)) for task in ("mnli", "race"))
    assert (mnli.batch.train_samples, race.batch.train_samples) == (800, 800)
    assert race.batch.train_tokens == 4 * mnli.batch.train_tokens == 4 * 800 * 128
    assert race.step_flops == 4 * mnli.step_flops
    in_tokens = job_of(make_job, "race", schedule={"train_iters": None, "train_tokens": 800 * 512})
    assert make_plan(in_tokens).batch.train_samples == 800


def test_there_are_no_logits(make_job: Any) -> None:
    device = device_named("H100")
    model = {**BERT, "hidden_size": 1024, "num_attention_heads": 16}
    batch = {"micro_batch_size": 256, "global_batch_size": 256}  # so large that kernels take longer than to start them
    masked, mnli, race = (job_of(make_job, task, model=model, batch=batch) for task in (None, "mnli", "race"))
    assert model_flops(masked, 1, 30080) - model_flops(mnli, 1, 30080) == 6 * (30080 + 1024) * 1024
    assert "V*h" not in formula(mnli)
    seconds = [estimate_time(job, 30080, "torch", device).step_seconds for job in (masked, mnli, race)]
    assert seconds[1] < seconds[0]
    assert 1.5 * seconds[1] < seconds[2]
    activations = [estimate_memory(job, 30080, "torch").stages[0].parts["activations"] for job in (mnli, race)]
    assert activations[1] == 4 * activations[0]
    assert estimate_memory(mnli, 30080, "torch").peak_bytes < estimate_memory(masked, 30080, "torch").peak_bytes


@pytest.mark.parametrize(("task", "is_summed"), [(None, True), ("mnli", False)])
def test_no_output_layer_shares_the_embedding(make_job: Any, task: str | None, is_summed: bool) -> None:
    """What the first and the last stage sum of it, where there is one replica."""
    stages = {"parallelism": {"pipeline_model_parallel_size": 2}, "launch": {"gpus_per_node": 2}}
    time = estimate_time(job_of(make_job, task, **stages), 30080, "torch", device_named("H100"))
    assert (time.parts["data_parallel"] > 0) == is_summed


def test_files_that_are_not_here_draw_a_warning(make_job: Any) -> None:
    assert "data task.train" in codes(make_plan(job_of(make_job, "race")).warnings)
