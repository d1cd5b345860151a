"""A resume with another batch, another sequence length or another length of training: what real runs read and count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.faults import CommandLine
from support.indexed_files import write_indexed
from support.training import events, layout, tiny_job

from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.rundir import RunDir, read_lines
from orchestrator.spec.job import JobSpec

pytestmark = pytest.mark.distributed

SMALL = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": None}
STEP = """
import os
from orchestrator.runtime.steps.gpt import NextToken

class Recording(NextToken):
    def get_batch(self, samples):
        with open(f"read-{os.environ['RANK']}.txt", "a") as file:
            for row in samples["tokens"].tolist():
                print(*row, file=file)
        return super().get_batch(samples)
"""


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Two of random tokens below 256, of 4,000 and of 2,200."""
    random, found = np.random.RandomState(5), []
    for name, lengths in (("a", [40] * 100), ("b", [44] * 50)):
        found.append(write_indexed(tmp_path / name, lengths))
        tokens = random.randint(0, 256, sum(lengths)).astype("<u2")
        (tmp_path / f"{name}.bin").write_bytes(tokens.tobytes())
    return found


def job_of(sources: list[str], name: str, **sections: Any) -> JobSpec:
    """Four sequences of 32 tokens a step."""
    blend = [{"path": path, "weight": weight} for path, weight in zip(sources, (0.7, 0.3), strict=False)]
    return tiny_job(
        name,
        model={**SMALL, "seq_length": 32},
        data={"random_tokens": False, "blend": blend, "split": "1,0,0"},
        **{"batch": {"micro_batch_size": 2, "global_batch_size": 4}, "checkpoint": {"save_interval": 5}, **sections},
    )


def counts(run: RunDir) -> list[tuple[int, int, int]]:
    """Iteration, samples and tokens of each step that was measured, in the order of the file."""
    lines = [line for line in read_lines(run.metrics_file) if "train/loss" in line["values"]]
    return [(line["iteration"], line["samples"], line["tokens"]) for line in lines]


def test_a_larger_batch_ends_where_the_resume_says(orchestrator: CommandLine, sources: list[str]) -> None:
    """Of a blend, whose last whole step goes past what it was drawn for, with validation from the same sources."""
    job = job_of(sources, "larger", schedule={"train_iters": 5, "lr_warmup_iters": 0})
    assert orchestrator("run", orchestrator.write(job)).code == 0
    run = orchestrator.run()
    validation = ["data.split=90,10,0", "evaluation.eval_interval=2", "evaluation.eval_iters=2"]
    larger = ["batch.global_batch_size=16", "schedule.train_iters=4", *validation]
    said = orchestrator("resume", run.path, *(f"--set={word}" for word in larger), "--allow-changes")
    assert said.code == 0, said
    assert "it ends at iteration 8" in said.out
    assert counts(run)[5:] == [(6, 36, 36 * 32), (7, 52, 52 * 32), (8, 68, 68 * 32)]
    assert status_of(run).state == "completed"
    assert [line["iteration"] for line in read_lines(run.metrics_file) if "validation/loss" in line["values"]] == [6, 8]


def test_batches_that_follow_from_replicas_and_a_ramp(orchestrator: CommandLine, sources: list[str]) -> None:
    """One source, read to the last sample of its epoch; then more replicas, each with as many micro-batches."""
    held = (4000 - 1) // 32  # samples: 31 steps of 4 are all but one of them
    batch = {"micro_batch_size": 2, "global_batch_size": None, "num_micro_batches": 2}
    job = job_of(sources[:1], "replicas", schedule={"train_iters": None, "train_samples": 116}, batch=batch)
    assert orchestrator("run", orchestrator.write(job)).code == 0
    run = orchestrator.run()
    more = ["parallelism.data_parallel_size=3", f"schedule.train_samples={held}"]
    assert orchestrator("resume", run.path, *(f"--set={word}" for word in more), "--allow-changes").code == 0
    assert counts(run)[-1] == (30, 128, 128 * 32)
    ramp = ["batch.rampup_batch_size=[6,6,200]", "schedule.train_samples=150"]
    assert orchestrator("resume", run.path, *(f"--set={word}" for word in ramp), "--allow-changes").code == 0
    assert counts(run)[-1][1] >= 150
    assert status_of(run).state == "completed"


def test_tokens_are_counted_as_they_were_read(orchestrator: CommandLine, sources: list[str]) -> None:
    job = job_of(sources, "longer", schedule={"train_iters": None, "train_tokens": 1536, "lr_warmup_iters": None})
    assert orchestrator("run", orchestrator.write(job)).code == 0
    run = orchestrator.run()
    longer = ["--set=model.seq_length=64", "--set=schedule.train_tokens=4096"]
    asked = orchestrator("resume", run.path, *longer)
    assert asked.code == 2
    assert "of the remaining 40, about" in asked.out, "how many repeat what was read at the other length"
    assert [event["iteration"] for event in events(run, "started")] == [0]
    assert orchestrator("resume", run.path, *longer, "--allow-changes").code == 0
    assert counts(run)[11] == (12, 48, 1536)
    assert counts(run)[12:] == [(12 + step, 48 + 4 * step, 1536 + 256 * step) for step in range(1, 11)]
    marker = json.loads((run.checkpoint(22) / "commit.json").read_bytes())
    assert (marker["consumed_samples"], marker["consumed_tokens"]) == (88, 4096)
    rates = [line["values"]["train/lr"] for line in read_lines(run.metrics_file)]
    assert rates[-1] == min(rates[12:]), "the decay ends where the training does"
    enough = orchestrator("resume", run.path, "--set=schedule.train_tokens=2048", "--allow-changes")
    assert enough.code == 2
    assert "4,096 tokens are done" in enough.err


def test_an_extension_reads_what_was_not_read_yet(
    orchestrator: CommandLine, sources: list[str], tmp_path: Path
) -> None:
    """Beyond the epoch that the order was made for, at another number of replicas."""
    (tmp_path / "recording.py").write_text(STEP)
    job = job_of(sources[:1], "extended", schedule={"train_iters": 25}, runtime={"train_step": "recording:Recording"})
    assert orchestrator("run", orchestrator.write(job)).code == 0
    run = orchestrator.run()
    more = ["schedule.train_iters=60", *(f"parallelism.{key}={value}" for key, value in layout(dp=2).items() if value)]
    assert orchestrator("resume", run.path, *(f"--set={word}" for word in more), "--allow-changes").code == 0
    first = (tmp_path / "read-0.txt").read_text().splitlines()
    second = (tmp_path / "read-1.txt").read_text().splitlines()
    assert (len(first), len(second)) == (100 + 70, 70)
    drawn = first[:100]
    for step in range(35):  # micro-batches of two, the replicas' in turn
        drawn += [*first[100 + 2 * step : 102 + 2 * step], *second[2 * step : 2 * step + 2]]
    held = (4000 - 1) // 32
    assert len(set(drawn[:held])) == held, "one epoch, without a gap"
    assert len(set(drawn[held:])) == len(drawn[held:]) == 240 - held, "and then the next"
