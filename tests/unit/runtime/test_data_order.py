"""What a run draws from its data, however it is stopped, resumed and changed: against a plain reference."""

from __future__ import annotations

from support.event_log import append_event, log_of

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.indexed_files import write_indexed
from support.training import make_run, tiny_job

from orchestrator.errors import CheckpointError
from orchestrator.planning.training_schedule.progress import stored_progress
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import Commit, file_record, read_commit, write_commit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.batch_sampler import MicroBatchSampler
from orchestrator.runtime.startup import open_data, open_data_at
from orchestrator.runtime.state import TrainState
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

SOURCES = {"a": [23] * 30, "b": [40, 9, 130, 77] * 3, "c": [61] * 7}
"""Lengths of documents; each source has tokens of its own, from 80 times its number on."""


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    rendezvous = tmp_path_factory.mktemp("group") / "rendezvous"
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, each of random tokens: that two samples are alike by chance is next to impossible."""
    place, random = tmp_path_factory.mktemp("sources"), np.random.RandomState(1)
    for number, (name, lengths) in enumerate(SOURCES.items()):
        write_indexed(place / name, lengths)
        tokens = random.randint(80 * number, 80 * number + 80, sum(lengths))
        (place / f"{name}.bin").write_bytes(tokens.astype("<u2").tobytes())
    return place


@dataclass
class Spec:
    """What is varied of a job."""

    blend: list[tuple[str, float]]
    seq_length: int
    micro: int
    replicas: int
    passes: int
    unit: str
    length: int = 0
    rampup: list[int] | None = None

    @property
    def batch(self) -> int:
        return self.micro * self.replicas * self.passes

    @property
    def ramp(self) -> list[int] | None:
        """The first batch and the increment are whole passes."""
        if self.rampup is None or self.rampup[0] >= self.passes:
            return None
        one = self.micro * self.replicas
        return [self.rampup[0] * one, one, self.rampup[1]]

    def job(self, folder: Path) -> JobSpec:
        return tiny_job(
            "order",
            model={"vocab_size": None, "seq_length": self.seq_length},
            data={
                "random_tokens": False,
                "split": "1,0,0",
                "blend": [{"path": str(folder / name), "weight": weight} for name, weight in self.blend],
            },
            batch={"micro_batch_size": self.micro, "global_batch_size": self.batch, "rampup_batch_size": self.ramp},
            parallelism={"data_parallel_size": self.replicas},
            schedule={"train_iters": None, "lr_warmup_iters": None, self.unit: self.length},
        )


@dataclass
class Reference:
    """The plain truth: counts added up step by step, and every sample that was drawn, in order."""

    iteration: int = 0
    samples: int = 0
    tokens: int = 0
    drawn: dict[tuple[str, int], list[tuple[int, ...]]] = field(default_factory=dict)
    """Of a source, cut to a length."""
    blend: Any = None
    given: list[int] = field(default_factory=list)
    """Samples that each source of the blend in force gave."""
    firsts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Samples for which the first order of a source was made."""

    def copy(self) -> Reference:
        drawn = {key: list(samples) for key, samples in self.drawn.items()}
        return Reference(
            self.iteration, self.samples, self.tokens, drawn, self.blend, list(self.given), dict(self.firsts)
        )

    def begin(self, spec: Spec, end: int) -> None:
        """A start; another blend, or other samples, begin to be drawn from here."""
        if self.blend == (spec.blend, spec.seq_length):
            return
        self.blend, self.given = (list(spec.blend), spec.seq_length), [0] * len(spec.blend)
        shares, asked = spec_shares(spec), end - self.samples
        for (name, _), share in zip(spec.blend, shares, strict=True):
            first = math.ceil(math.ceil(asked * share) * 1.005) if len(shares) > 1 else asked
            first = 1 if self.samples else first  # what begins later is read epoch by epoch
            self.firsts.setdefault((name, spec.seq_length), first)

    def draw(self, spec: Spec, tokens: list[int]) -> None:
        """One sample, which has to be of the source that lags furthest behind its share."""
        lags = [
            share * max(sum(self.given), 1) - count for share, count in zip(spec_shares(spec), self.given, strict=True)
        ]
        number = lags.index(max(lags))
        name = spec.blend[number][0]
        assert list(SOURCES)[tokens[0] // 80] == name
        self.given[number] += 1
        self.drawn.setdefault((name, spec.seq_length), []).append(tuple(tokens))
        self.samples += 1
        self.tokens += spec.seq_length

    def check(self, folder: Path) -> None:
        """What was drawn of each source, and so what was left unseen, is right up to here."""
        for (name, length), samples in self.drawn.items():
            held, first = sum(SOURCES[name]), self.firsts[name, length]
            epoch, epochs = (held - 1) // length, math.ceil((first * length + 1) / held)
            if epochs == 1:
                in_first = 0
            else:  # megatron-core shuffles them together
                in_first = (epochs * held - 1) // length
                assert samples[:in_first] == plainly(name, length, first, folder)[: min(len(samples), in_first)]
            rest = samples[in_first:]
            chunks = [rest[begin : begin + epoch] for begin in range(0, len(rest), epoch)]
            for chunk in chunks:
                assert len(set(chunk)) == len(chunk), "nothing comes again in an epoch"
                assert len(chunk) < epoch or set(chunk) == set(chunks[0]), "an epoch leaves nothing unseen"


def spec_shares(spec: Spec) -> list[float]:
    return shares_of(tuple(weight for _, weight in spec.blend))


@functools.cache
def shares_of(given: tuple[float, ...]) -> list[float]:
    weights = np.array(given)
    weights = weights / weights.sum()
    return list(weights / weights.sum())


@functools.cache
def plainly(name: str, length: int, first: int, folder: Path) -> list[tuple[int, ...]]:
    """All samples of a job of one source that nothing happens to, as megatron-core makes them."""
    spec = Spec([(name, 1.0)], length, 1, 1, 1, "train_samples", first)
    job = spec.job(folder)
    schedule, _ = open_data_at(job, RunDir(folder / "runs" / "x"), vocabulary(job), TrainState(), None)
    data = open_data(job, RunDir(folder / "runs" / "x"), vocabulary(job), schedule)
    assert data.train is not None
    return [tuple(data.train[index]["tokens"].tolist()) for index in range(len(data.train))]


def restored(run: RunDir, commit: Commit | None) -> tuple[TrainState, Any]:
    """What a start goes on from, as the runtime restores it."""
    if commit is None:
        return TrainState(), None
    known = stored_progress(run, commit, run.events())
    done = known.progress
    return TrainState(done.iteration, done.samples, done.tokens), known.position


def train(run: RunDir, spec: Spec, folder: Path, truth: Reference, commit: Commit | None, steps: int) -> Commit:
    """Start a job where a checkpoint is, do `steps` steps at most, and save."""
    job = spec.job(folder)
    state, before = restored(run, commit)
    assert (state.iteration, state.consumed_samples, state.consumed_tokens) == (
        truth.iteration,
        truth.samples,
        truth.tokens,
    )
    schedule, datasets = open_data_at(job, run, vocabulary(job), state, before)
    assert datasets.train is not None
    truth.begin(spec, schedule.train_samples)
    samplers = [
        iter(MicroBatchSampler(schedule, state.consumed_samples, schedule.train_samples, replica))
        for replica in range(spec.replicas)
    ]
    end = job_samples(spec) if spec.unit == "train_iters" else 0
    goal = {
        "train_iters": lambda: truth.samples >= end,
        "train_samples": lambda: truth.samples >= spec.length,
        "train_tokens": lambda: truth.tokens >= spec.length,
    }[spec.unit]
    for _ in range(steps):
        assert goal() == (truth.samples >= schedule.train_samples), "it ends at the first whole step that has enough"
        if goal():
            assert truth.iteration == schedule.train_iters
            break
        batch = ramped(spec, truth.samples)
        for _ in range(batch // (spec.micro * spec.replicas)):
            for sampler in samplers:
                for index in next(sampler):
                    truth.draw(spec, datasets.train[index]["tokens"].tolist())
        truth.iteration += 1
    place = run.checkpoint(truth.iteration)
    place.mkdir(parents=True, exist_ok=True)
    assert state.data is not None
    position = state.data.to_dict()
    counts = {"iteration": truth.iteration, "consumed_samples": truth.samples, "consumed_tokens": truth.tokens}
    write_commit(place, **counts, files={}, data=position)
    saved = read_commit(place)
    assert saved is not None
    return saved


def ramped(spec: Spec, consumed: int) -> int:
    """The batch after `consumed` samples, as Megatron-LM's calculator has it."""
    if spec.ramp is None:
        return spec.batch
    start, increment, samples = spec.ramp
    size, one = spec.batch, spec.micro * spec.replicas
    if consumed <= samples:
        increments = math.ceil((size - start) / increment)
        size = min(start + int(consumed / (samples / increments)) * increment, size)
    return max(size // one, 1) * one


def job_samples(spec: Spec) -> int:
    """Samples of `train_iters` steps from the start."""
    samples = 0
    for _ in range(spec.length):
        samples += ramped(spec, samples)
    return samples


blends = st.lists(
    st.tuples(st.sampled_from(list(SOURCES)), st.sampled_from([0.1, 0.3, 0.7, 1.0, 2.0])),
    min_size=1,
    max_size=3,
    unique_by=lambda entry: entry[0],
)
specs = st.builds(
    Spec,
    blend=blends,
    seq_length=st.sampled_from([8, 16, 24]),
    micro=st.integers(1, 2),
    replicas=st.integers(1, 3),
    passes=st.integers(1, 3),
    unit=st.sampled_from(["train_iters", "train_samples", "train_tokens"]),
    rampup=st.none() | st.tuples(st.integers(1, 2), st.integers(1, 40)).map(list),
)
changed = st.sets(st.sampled_from(["blend", "seq_length", "batch", "nothing"]), max_size=2)
starts = st.lists(st.tuples(changed, specs, st.integers(1, 30), st.integers(0, 25), st.booleans()), max_size=4)


@pytest.mark.slow("two hundred runs of up to five starts each build some hundred sample indices")
@settings(max_examples=examples(200), deadline=None)
@given(first=specs, length=st.integers(1, 30), steps=st.integers(0, 25), later=starts)
def test_any_sequence_of_starts_and_changes(
    folder: Path, first: Spec, length: int, steps: int, later: list[tuple[set[str], Spec, int, int, bool]]
) -> None:
    truth, spec, commit = Reference(), first, None
    with TemporaryDirectory(dir=folder) as place:
        run = RunDir(Path(place) / "order" / "run")
        for number, (changes, other, more, at_most, is_killed) in enumerate(
            [(set(), first, length, steps, False), *later]
        ):
            if "blend" in changes:
                spec.blend = other.blend
            if "seq_length" in changes:
                spec.seq_length = other.seq_length
            if "batch" in changes:
                spec.micro, spec.replicas, spec.passes = other.micro, other.replicas, other.passes
                spec.rampup = other.rampup
            if number == 0 or "nothing" not in changes:
                done = {
                    "train_iters": math.ceil(truth.samples / ramped(spec, 10**9)),
                    "train_samples": truth.samples,
                    "train_tokens": truth.tokens,
                }
                spec.length = done[spec.unit] + more * (spec.batch * spec.seq_length if "tokens" in spec.unit else 1)
            before = truth.copy()
            saved = train(run, spec, folder, truth, commit, at_most)
            truth.check(folder)
            if is_killed:  # nothing of it is left, and it is drawn again
                again = before.copy()
                train(run, spec, folder, again, commit, at_most)
                assert again == truth
            commit = saved


def test_a_checkpoint_without_tokens_is_counted_by_the_specs_of_its_run(tmp_path: Path) -> None:
    job = tiny_job("old", model={"seq_length": 32}, batch={"global_batch_size": 4}, schedule={"train_iters": 12})
    run = make_run(tmp_path, job)
    append_event(run, "started", launch_id="1", iteration=0)
    longer = tiny_job("old", model={"seq_length": 64}, batch={"global_batch_size": 4}, schedule={"train_iters": 20})
    make_run(tmp_path, longer)
    append_event(run, "started", launch_id="2", iteration=12)
    place = run.checkpoint(20)
    place.mkdir(parents=True)
    write_commit(place, iteration=20, consumed_samples=80, files={})
    commit = read_commit(place)
    assert commit is not None
    assert stored_progress(run, commit, run.events()).progress.tokens == 12 * 4 * 32 + 8 * 4 * 64


def test_a_checkpoint_is_counted_by_the_spec_that_it_carries(tmp_path: Path) -> None:
    """One that Megatron-LM's was imported as, or of a folder whose files have new times: the run has a longer spec."""
    job, longer = (
        tiny_job(
            "carried",
            model={"vocab_size": None, "seq_length": length},
            data={"random_tokens": False, "blend": ["a"]},
            schedule={"train_iters": steps},
        )
        for length, steps in ((32, 12), (64, 50))
    )
    make_run(tmp_path, job)
    run = make_run(tmp_path, longer)
    place = run.checkpoint(10)
    place.mkdir(parents=True)
    (place / "job.json").write_text(dump_resolved(job))
    write_commit(place, iteration=10, consumed_samples=80, files={"job.json": file_record(place / "job.json")})
    commit = read_commit(place)
    assert commit is not None
    known = stored_progress(run, commit, log_of())
    assert known.progress.tokens == 80 * 32
    assert known.position is not None
    assert (known.position.samples, known.position.sources[0].tokens) == (12 * 8, 32)


@pytest.mark.parametrize("tokens", [-1, "many", None, 1.5, True])
def test_damaged_counts_are_no_older_checkpoint(tmp_path: Path, tokens: Any) -> None:
    run = make_run(tmp_path, tiny_job("damaged"))
    place = run.checkpoint(2)
    place.mkdir(parents=True)
    write_commit(place, iteration=2, consumed_samples=16, files={}, consumed_tokens=tokens, data=None)
    commit = read_commit(place)
    assert commit is not None
    with pytest.raises(CheckpointError):
        stored_progress(run, commit, log_of())


@pytest.mark.parametrize("record", [7, {}, {"since": 0, "samples": 1, "weights": [1], "sources": [3], "others": []}])
def test_a_damaged_position_is_no_position(tmp_path: Path, record: Any) -> None:
    run = make_run(tmp_path, tiny_job("damaged"))
    place = run.checkpoint(2)
    place.mkdir(parents=True)
    write_commit(place, iteration=2, consumed_samples=16, files={}, consumed_tokens=1024, data=record)
    commit = read_commit(place)
    assert commit is not None
    with pytest.raises(CheckpointError):
        stored_progress(run, commit, log_of())
