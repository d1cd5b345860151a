"""Which samples are read when: for any schedule, layout and starting point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.training import tiny_job
from torch.utils.data import Dataset

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.runtime import loop
from orchestrator.runtime.batch_sampler import BatchStream, MicroBatchSampler, RandomTokens
from orchestrator.runtime.optimizer_step import UpdateResult
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.steps.gpt import NextToken

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    """Schedules of a few steps, with and without ramp-up."""
    micro, replicas, passes = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    batch: dict[str, Any] = {"micro_batch_size": micro, "global_batch_size": micro * replicas * passes}
    if passes > 1 and draw(st.booleans()):
        batch["rampup_batch_size"] = {
            "start_global_batch_size": micro * replicas,
            "increment": micro * replicas,
            "samples": draw(st.integers(1, 60)),
        }
    job = tiny_job(
        "job",
        batch=batch,
        parallelism={"data_parallel_size": replicas},
        schedule={"train_iters": draw(st.integers(3, 12))},
    )
    return BatchSchedule.of(job)


def steps(schedule: BatchSchedule, consumed: int) -> list[list[int]]:
    """The samples of each step as the replicas read them, from `consumed` on, in the order of the global batch."""
    replicas = [
        iter(MicroBatchSampler(schedule, consumed, schedule.train_samples, replica))
        for replica in range(schedule.data_parallel_size)
    ]
    found = []
    while consumed < schedule.train_samples:
        samples: list[int] = []
        for _ in range(schedule.num_micro_batches(consumed)):
            for replica in replicas:
                samples += next(replica)
        found.append(samples)
        consumed += schedule.global_batch_size(consumed)
    for replica in replicas:
        assert next(replica, None) is None, "a replica reads more than the schedule"
    return found


@given(schedules())
def test_each_step_reads_exactly_its_samples_in_order(schedule: BatchSchedule) -> None:
    consumed = 0
    for samples in steps(schedule, 0):
        assert samples == list(range(consumed, consumed + schedule.global_batch_size(consumed)))
        consumed += len(samples)
    assert consumed == schedule.train_samples


@given(schedules(), st.data())
def test_a_resumed_training_reads_the_rest(schedule: BatchSchedule, data: st.DataObject) -> None:
    iteration = data.draw(st.integers(0, schedule.train_iters))
    assert steps(schedule, schedule.samples_at(iteration)) == steps(schedule, 0)[iteration:]


class Counted(Dataset[dict[str, torch.Tensor]]):
    """Item i holds i everywhere; counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.reads += 1
        full = torch.full((3,), index)
        return {"tokens": full, "labels": full + 1, "loss_mask": torch.ones(3), "position_ids": torch.arange(3)}


def test_chunks_share_fetches() -> None:
    data = Counted()
    stream = BatchStream(data, [[0, 1], [2, 3], [4, 5]], NextToken().get_batch, CPU, workers=0, num_chunks=2)
    first, second = stream.iterators()
    ahead = [next(first), next(first)]
    behind = [next(second), next(second), next(second)]
    last = next(first)
    assert [batch["tokens"][:, 0].tolist() for batch in behind] == [[0, 1], [2, 3], [4, 5]]
    assert [a is b for a, b in zip([*ahead, last], behind, strict=True)] == [True] * 3
    assert data.reads == 6
    assert ahead[1]["labels"].tolist() == [[3, 3, 3], [4, 4, 4]]


def test_fields_that_are_read_on_the_host_stay_there() -> None:
    elsewhere = replace(CPU, torch_device=torch.device("meta"))
    stream = BatchStream(Counted(), [[0, 1]], lambda samples: samples, elsewhere, 0, 1, on_host=["labels"])
    batch = next(iter(stream.iterators()[0]))
    assert {name: values.device.type for name, values in batch.items()} == {
        "tokens": "meta",
        "labels": "cpu",
        "loss_mask": "meta",
        "position_ids": "meta",
    }


@pytest.mark.parametrize("chunks", [1, 2], ids=["one-chunk", "two-chunks"])
def test_one_micro_batch_is_fetched_ahead_and_none_behind_the_last(chunks: int) -> None:
    data = Counted()
    stream = BatchStream(data, [[0], [1]], NextToken().get_batch, CPU, workers=0, num_chunks=chunks)
    for number in range(2):
        stream.fetch_ahead()
        stream.fetch_ahead()
        assert data.reads == number + 1
        found = [next(iterator)["tokens"][0, 0].item() for iterator in stream.iterators()]
        assert found == [number] * chunks
    stream.fetch_ahead()
    assert data.reads == 2
    assert [list(iterator) for iterator in stream.iterators()] == [[]] * chunks


def test_the_next_micro_batch_is_fetched_while_the_device_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the update asks the device, the norm, is answered once the passes are done.
    order: list[str] = []
    session: Any = MagicMock()
    session.batches.fetch_ahead.side_effect = lambda: order.append("fetch")
    monkeypatch.setattr(loop, "_passes", lambda session: order.append("passes"))
    monkeypatch.setattr(loop, "update", lambda *given: order.append("update") or UpdateResult(True, 1.0))
    loop.train_step(session)
    assert order == ["passes", "fetch", "update"]


def test_reading_does_not_touch_the_default_generator() -> None:
    before = torch.get_rng_state()
    next(iter(BatchStream(Counted(), [[0]], NextToken().get_batch, CPU, workers=0, num_chunks=1).iterators()[0]))
    assert torch.equal(torch.get_rng_state(), before)


def test_random_tokens_are_a_function_of_seed_and_index() -> None:
    data = RandomTokens(vocab_size=11, seq_length=50, seed=3, length=4)
    again = RandomTokens(vocab_size=11, seq_length=50, seed=3, length=4)
    other = RandomTokens(vocab_size=11, seq_length=50, seed=4, length=4)
    assert len(data) == 4
    assert torch.equal(data[2]["tokens"], again[2]["tokens"])
    assert not torch.equal(data[2]["tokens"], data[1]["tokens"])
    assert not torch.equal(data[2]["tokens"], other[2]["tokens"])
    assert torch.equal(data[2]["tokens"][1:], data[2]["labels"][:-1])
    assert set(data[0]["tokens"].tolist()) <= set(range(11))
