"""Whether passes are captured, and the generators that graphs draw from."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core import tensor_parallel
from support.cuda import show_gpus
from support.reference_times import job_of
from support.refused import refused
from support.training import tiny_job

from orchestrator.errors import UserError
from orchestrator.runtime import cuda_graphs
from orchestrator.runtime.cuda_graphs import choose_graphs
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import (
    Ranks,
    rng_generators,
    rng_state,
    seed_everything,
    set_rng_state,
)
from orchestrator.spec.job import JobSpec

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")
H200 = Device("cuda", torch.device("cuda"), "nccl", "NVIDIA H200")
A100 = Device("cuda", torch.device("cuda"), "nccl", "NVIDIA A100-SXM4-80GB")
UNKNOWN = Device("cuda", torch.device("cuda"), "nccl", "NVIDIA of tomorrow")
SMALL, LARGE = tiny_job("small"), tiny_job("large", model={"hidden_size": 4096, "seq_length": 4096})


RANK_0 = Ranks(rank=0, world_size=2, tp=0, tp_size=1, pp=0, pp_size=1, dp=0, dp_size=2, num_chunks=1)


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """What captures opens a stream."""
    show_gpus(monkeypatch, Stream=object)


WAITS, ALIKE = "the other one's does not wait", "as this one"
QUICK = 1e-6
"""Seconds in which a host starts a kernel, fewer than planned."""


class WithAnother:
    """What the first of two ranks agrees on where the other one has this against it, or nothing, which is news where
    the passes are not captured. `ALIKE`: the other one is as this one.
    """

    def __init__(self, other: str | None) -> None:
        self._other = other
        self._first: object = None

    def gather_to_first(self, own: object) -> list[object]:
        return [own, own if self._other == ALIKE else self._other]

    def from_first(self, said: Any) -> Any:
        self._first = said
        return said

    def any(self, own: bool) -> bool:
        captured = self._first is None
        return own or (self._other is None and not captured)


@pytest.mark.parametrize(
    ("job", "device", "another", "is_captured", "said"),
    [
        (SMALL, H200, None, True, ""),
        (LARGE, H200, WAITS, False, ""),
        (LARGE, H200, None, False, "H200 would not wait for the host (rank 0)"),
        (SMALL, H200, WAITS, False, f"{WAITS} (rank 1)"),
        (SMALL, A100, WAITS, False, ""),
        (SMALL, A100, None, False, "they were measured on Hopper GPUs, and this is A100"),
        (SMALL, UNKNOWN, WAITS, False, "NVIDIA of tomorrow"),
        (SMALL, CPU, WAITS, False, ""),
        (tiny_job("refused", runtime={"cuda_graphs": False}), H200, None, False, ""),
        (tiny_job("demanded", model=LARGE.model.model_dump(), runtime={"cuda_graphs": True}), UNKNOWN, WAITS, True, ""),
    ],
    ids=["small", "large", "one", "another", "not measured", "another kind", "unknown", "cpu", "refused", "demanded"],
)
def test_who_is_captured(
    job: JobSpec,
    device: Device,
    another: str | None,
    is_captured: bool,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    control: Any = WithAnother(another)
    assert (choose_graphs(job, device, 384, "torch", RANK_0, control, QUICK, None) is not None) == is_captured
    told = capsys.readouterr().out
    assert told.count("\n") == bool(said)
    assert said in told
    assert told.startswith("the passes are not CUDA graphs: " if said else "")


REPLICAS = job_of("gpt-1.7b", dp=2, micro=1, batch=16)


AS_PLANNED, SLOW = 6e-6, 15.6e-6
ON_A_SLOW_HOST = "the passes are CUDA graphs: a host takes 2.6 times as long to start a kernel as planned\n"


@pytest.mark.parametrize(
    ("seconds", "before", "is_captured", "said"),
    [
        (AS_PLANNED, None, False, ""),
        (SLOW, None, True, ON_A_SLOW_HOST),
        (SLOW, False, False, ""),
        (AS_PLANNED, True, True, "the passes are CUDA graphs: this run began with them\n"),
    ],
    ids=["as planned", "slow", "slow, and began without", "as planned, and began with them"],
)
def test_a_slow_host_has_replicas_captured_from_the_beginning(
    seconds: float,
    before: bool | None,
    is_captured: bool,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1.7B, micro-batches of one, two replicas: 1,134 ms and captured 649 on such a host. What they add up, and in
    which order, a run keeps.
    """
    control: Any = WithAnother(ALIKE)
    captured = choose_graphs(REPLICAS, H200, 131_072, "transformer_engine", RANK_0, control, seconds, before)
    assert (captured is not None) == is_captured
    assert capsys.readouterr().out == said


def test_what_now_stands_in_the_way_is_said_of_replicas_that_were_captured(capsys: pytest.CaptureFixture[str]) -> None:
    control: Any = WithAnother(ALIKE)
    job = job_of("gpt-7.1b", dp=2, micro=4, batch=16)
    assert choose_graphs(job, H200, 131_072, "transformer_engine", RANK_0, control, AS_PLANNED, True) is None
    assert "too little memory on" in capsys.readouterr().out


def test_replicas_that_began_without_what_is_planned_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    control: Any = WithAnother(ALIKE)
    job = job_of("gpt-345m", dp=2, micro=1, batch=8)
    assert choose_graphs(job, H200, 51_200, "transformer_engine", RANK_0, control, AS_PLANNED, False) is None
    assert "this run began without them, and runtime.cuda_graphs changes that" in capsys.readouterr().out


def test_one_replica_follows_its_host_whatever_it_had() -> None:
    """It is the same to the bit."""
    control: Any = WithAnother(ALIKE)
    assert choose_graphs(SMALL, H200, 384, "torch", RANK_0, control, AS_PLANNED, False) is not None


@pytest.mark.parametrize("content", ["base: [", None], ids=["damaged", "unreadable"])
def test_a_calibrated_profile_that_cannot_be_read_is_told_of(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "gpus" / "H200.yaml"
    profile.parent.mkdir()
    profile.mkdir() if content is None else profile.write_text(content)
    control: Any = WithAnother(WAITS)
    assert choose_graphs(SMALL, H200, 384, "torch", RANK_0, control, QUICK, None) is None
    told = capsys.readouterr().out
    assert told.startswith("the passes are not CUDA graphs: ")
    assert "gpus/H200.yaml" in told
    assert told.count("\n") == 1


def test_where_there_is_no_gpu_a_demand_is_refused() -> None:
    control: Any = WithAnother(None)
    with refused("cuda_graphs_without_gpu", "runtime.cuda_graphs"):
        choose_graphs(
            tiny_job("captured", runtime={"cuda_graphs": True}), CPU, 384, "torch", RANK_0, control, QUICK, None
        )


class Kind:
    """megatron-core's tracker, which without a GPU cannot be of the kind for graphs."""

    def __init__(self, use_cudagraphable_rng: bool, **others: object) -> None:
        self.use_cudagraphable_rng = use_cudagraphable_rng

    def reset(self) -> None:
        """Nothing was added."""

    def add(self, name: str, seed: int) -> None:
        """Nothing is drawn."""


def test_each_job_of_a_process_has_generators_of_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """megatron-core keeps what it made for the first."""
    for group in ("tensor_model_parallel", "expert_model_parallel", "expert_tensor_parallel"):
        monkeypatch.setattr(tensor_parallel.random, f"get_{group}_rank", lambda: 0)
    # Put back afterwards: what megatron-core keeps for the process.
    for kept in ("_CUDA_RNG_STATE_TRACKER", "_CUDA_RNG_STATE_TRACKER_INITIALIZED"):
        monkeypatch.setattr(tensor_parallel.random, kept, getattr(tensor_parallel.random, kept))
    monkeypatch.setattr(tensor_parallel.random, "CudaRNGStatesTracker", Kind)
    show_gpus(monkeypatch, manual_seed=None)
    ranks = Ranks(rank=0, world_size=1, tp=0, tp_size=1, pp=0, pp_size=1, dp=0, dp_size=1, num_chunks=1)
    state = torch.get_rng_state()
    for for_graphs in (False, True, False):
        seed_everything(1, ranks, for_graphs=for_graphs)
        assert tensor_parallel.get_cuda_rng_tracker().use_cudagraphable_rng == for_graphs
    torch.set_rng_state(state)


class Tracker:
    """megatron-core's, as far as a state is concerned."""

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    def get_states(self) -> dict[str, Any]:
        return dict(self.states)

    def set_states(self, states: dict[str, Any]) -> None:
        self.states = states


@pytest.mark.parametrize(("saved_of_graphs", "read_by_graphs"), [(a, b) for a in (True, False) for b in (True, False)])
def test_what_dropout_draws_goes_on_with_graphs_and_without(
    saved_of_graphs: bool, read_by_graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint holds the same of either."""

    def track(seed: int, *, for_graphs: bool) -> Tracker:
        generator = torch.Generator().manual_seed(seed)
        tracker = Tracker({"model-parallel-rng": generator if for_graphs else generator.get_state()})
        monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: tracker)
        return tracker

    track(1, for_graphs=saved_of_graphs)
    saved = rng_state()
    wanted = torch.rand(4, generator=torch.Generator().manual_seed(1))

    tracker = track(2, for_graphs=read_by_graphs)
    generators = rng_generators()
    assert len(generators) == read_by_graphs
    set_rng_state(saved)
    [state] = tracker.states.values()
    if read_by_graphs:
        assert generators == [state], "a graph has captured this very generator"
        assert torch.equal(torch.rand(4, generator=state), wanted)
    else:
        drawn = torch.Generator()
        drawn.set_state(state)
        assert torch.equal(torch.rand(4, generator=drawn), wanted)


class CUDAGraph:
    """One that captures nothing."""

    replay = staticmethod(lambda: None)


@pytest.mark.parametrize(
    ("raised", "is_known", "message"),
    [
        (
            RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore"),
            UserError,
            "cannot be a CUDA",
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "^CUDA out of memory$"),
    ],
    ids=["not permitted", "memory"],
)
def test_what_cannot_be_captured_is_said_with_the_way_out(
    raised: RuntimeError, is_known: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, CUDAGraph=CUDAGraph, graph=lambda graph, **options: contextlib.nullcontext())
    monkeypatch.setattr(cuda_graphs, "rng_generators", list)

    def work() -> None:
        raise raised

    with pytest.raises(is_known, match=message) as found:
        cuda_graphs.CUDAGraphs().capture(work)
    if is_known is UserError:
        assert str(found.value).endswith("when stream is capturing; train with --set runtime.cuda_graphs=false")


def test_the_first_micro_batch_of_a_step_makes_fp8_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of captured passes; what an evaluation does is set aside."""
    told: list[Any] = []

    class Weights:
        def __init__(self, chunk: Any) -> None:
            told.append(chunk)

        def micro_batch(self, *, is_first: bool) -> Any:
            told.append(is_first)
            return contextlib.nullcontext()

        def set_aside(self) -> Any:
            told.append("aside")
            return contextlib.nullcontext()

    monkeypatch.setattr(cuda_graphs, "QuantizedWeights", Weights)
    monkeypatch.setattr(cuda_graphs, "metrics_of", lambda step: [])
    monkeypatch.setattr(cuda_graphs, "run_micro_batches", lambda *given, **named: torch.zeros(1, 2))
    chunk: Any = torch.nn.Linear(1, 1)
    settings = {"finalize_model_grads_func": lambda *given: None, "calculate_per_token_loss": False}
    settings["grad_scale_func"] = lambda loss: loss
    chunk.config = SimpleNamespace(fp8="hybrid", **settings)
    step: Any = SimpleNamespace(parts=("loss",))
    repeating: Any = SimpleNamespace(apart=contextlib.nullcontext, capture=lambda work: work)
    passes = cuda_graphs.CapturedPasses(step, chunk, repeating)
    for _ in range(2):
        passes.run(iter([{}]), 1)
    with passes.left_alone():
        pass
    assert told == [chunk, True, True, "aside"]
    told.clear()
    passes.run(iter([{}, {}]), 2)
    assert told == [True, False]
