"""Passes that are captured for one micro-batch and repeated for each train what the schedule's do, to the bit.

There is no graph on a CPU: what repeats them there computes them again. `tests/gpu/test_graphs.py` has the graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter
from support.training import layout, tiny_job
from support.uneven import shorter_batches

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains on real ranks")]

STEPS = 3
ON_THE_CPU = """
import contextlib
from orchestrator.runtime import startup

class Repeated:
    apart = staticmethod(contextlib.nullcontext)

    def capture(self, work):
        print("captured", flush=True)

        def again():
            print("repeated", flush=True)
            work()

        return again

startup.choose_graphs = lambda job, *machine: Repeated() if job.name.endswith("captured") else None
"""
DROPPING = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
BERT = {"architecture": "bert", "vocab_size": 300, "position_embedding_type": "learned_absolute", **DROPPING}
T5 = {"architecture": "t5", "decoder_seq_length": 16, "vocab_size": 320, "position_embedding_type": "relative"}
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OF_THREE: dict[str, Any] = {"micro_batch_size": 2, "global_batch_size": 6}
"""A third of a gradient is no number of fp32."""
CASES: dict[str, dict[str, Any]] = {
    "dropout": {"model": DROPPING},
    "lora": {"model": {"lora": {"rank": 4, "lora_dropout": 0.1}}},
    "recomputed": {"runtime": RECOMPUTED},
    "bert": {"model": BERT},
    "t5": {"model": T5},
    "growing": {
        "batch": {**OF_THREE, "rampup_batch_size": [2, 2, 8]},
        "schedule": {"train_iters": 4, "lr_warmup_iters": 1},
    },
    "replicas": {"parallelism": layout(dp=2), "batch": {**OF_THREE, "global_batch_size": 12}},
    "replicas-whole": {
        "parallelism": layout(dp=2, use_distributed_optimizer=False),
        "batch": {**OF_THREE, "global_batch_size": 12},
    },
    "t5replicas": {"model": T5, "parallelism": layout(dp=2), "batch": {**OF_THREE, "global_batch_size": 12}},
}


def job(case: str, kind: str, **sections: Any) -> JobSpec:
    return tiny_job(
        f"{case}-{kind}",
        **{"batch": OF_THREE, "schedule": {"train_iters": STEPS, "lr_warmup_iters": 1}, **CASES[case], **sections},
    )


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captured")


@pytest.fixture(scope="module")
def trained(ranks: Ranks, scratch: Path) -> dict[str, Measured]:
    """Every case both ways, by the jobs' names: those of one size by the same ranks."""
    (scratch / "inject.py").write_text(ON_THE_CPU)
    meter = Meter(ranks.starter, scratch, inject=scratch / "inject.py", warm_up=1)
    return meter.measure_all(job(case, kind) for case in CASES for kind in ("plain", "captured"))


@pytest.mark.parametrize("case", CASES)
def test_they_train_the_same(case: str, trained: dict[str, Measured], scratch: Path) -> None:
    plain, captured = (trained[job(case, kind).name] for kind in ("plain", "captured"))
    for each in (plain, captured):
        assert each.outcome == "measured", each.message
    assert len(set(plain.losses)) == job(case, "plain").schedule.train_iters
    assert captured.losses == plain.losses
    assert captured.grad_norms == plain.grad_norms
    for rank in range(job(case, "captured").world_size):
        [log] = scratch.glob(f"*-{case}-captured/run/logs/rank-{rank:05}.log")
        said = log.read_text().splitlines()
        assert said.count("captured") == 1
        assert said.count("repeated") == micro_batches(job(case, "captured")) - 3  # as many come before


def micro_batches(job: JobSpec) -> int:
    """Of a replica in all steps."""
    schedule, samples, count = BatchSchedule.of(job), 0, 0
    for _ in range(job.schedule.train_iters or 0):
        count += schedule.num_micro_batches(samples)
        samples += schedule.global_batch_size(samples)
    return count


def test_a_micro_batch_of_another_shape(ranks: Ranks, tmp_path: Path) -> None:
    """It is computed as it comes, among those that are repeated."""
    longer = {"schedule": {"train_iters": 4, "lr_warmup_iters": 1}}
    (tmp_path / "inject.py").write_text(ON_THE_CPU + shorter_batches(24))
    found = Meter(ranks.starter, tmp_path, inject=tmp_path / "inject.py", warm_up=1).measure_all(
        job("dropout", kind, **longer) for kind in ("plain", "captured")
    )
    plain, captured = (found[job("dropout", kind).name] for kind in ("plain", "captured"))
    for each in (plain, captured):
        assert each.outcome == "measured", each.message
    assert captured.losses == plain.losses
    assert captured.grad_norms == plain.grad_norms
    [log] = tmp_path.glob("*-captured/run/logs/rank-00000.log")
    said = log.read_text().splitlines()
    assert said.count("captured") == 1
    assert 0 < said.count("repeated") < micro_batches(job("dropout", "captured", **longer)) - 3
