"""Products that overlap with what tensor parallelism sends, without a GPU: who gets it, what Transformer Engine is
told, and when its buffers are given back. That it trains the same is for GPUs to show.
"""

from __future__ import annotations

from support.cuda import show_gpus
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import os
import sys
from contextlib import ExitStack
from enum import Enum
from types import ModuleType
from typing import Any

import pytest
import torch
from support.training import four_layer_job, layout

from orchestrator.errors import JobError
from orchestrator.runtime.layers.transformer_engine.tensor_overlap import begin_overlap
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec

GPU = Device("cuda", torch.device("cuda", 1), "nccl", "a GPU")


class Mode(Enum):
    NONE = "none"
    FP8 = "fp8"


class Engine(ModuleType):
    """Transformer Engine's part in it."""

    def __init__(self) -> None:
        super().__init__("transformer_engine.pytorch")
        self.UserBufferQuantizationMode = Mode
        self.opened: list[tuple[Any, ...]] = []
        self.fails: BaseException | None = None
        self.said: list[str] = []
        self.others_are_back = True
        self.patience: list[float | None] = []

    def initialize_ub(self, shape: list[int], tp: int, **settings: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.opened.append((shape, tp, settings))

    def destroy_ub(self) -> None:
        self.said.append("given back")


class Alone:
    """What the ranks agree on where there is one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def met(self, within: float | None = None) -> bool:
        self._engine.patience.append(within)
        return within is None or self._engine.others_are_back

    def gather_to_first(self, value: Any) -> list[Any]:
        return [value]

    def from_first(self, value: Any) -> Any:
        return value

    def barrier(self) -> None:
        self._engine.said.append("met")


class Config:
    tp_comm_overlap = tp_comm_overlap_rs_dgrad = False


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """As rank 1 of two, on a machine with two GPUs that open each other's memory."""
    engine = Engine()
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)
    monkeypatch.delitem(sys.modules, "orchestrator.runtime.layers.transformer_engine.user_buffers", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for name in ("UB_SKIPMC", "UB_TIMEOUT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    show_gpus(
        monkeypatch,
        device_count=2,
        can_device_access_peer=lambda device, peer: (device.index, peer) == (1, 0),
        synchronize=lambda: engine.said.append("computed"),
    )
    return engine


def job(*, overlaps: bool | None = None, **sections: Any) -> JobSpec:
    parallelism = layout(tp=2, sequence_parallel=True, tp_comm_overlap=overlaps)
    return four_layer_job("job", parallelism=parallelism, **{"precision": {"dtype": "bf16"}, **sections})


def begin(
    engine: Engine,
    job: JobSpec,
    closing: ExitStack,
    layers: Any = "transformer_engine",
    tp: int = 1,
    is_first: bool = False,
) -> Config:
    config: Any = Config()
    control: Any = Alone(engine)
    ranks = Ranks(
        rank=0 if is_first else 1, world_size=2, tp=tp, tp_size=2, pp=0, pp_size=1, dp=0, dp_size=1, num_chunks=1
    )
    begin_overlap(job, config, layers, GPU, ranks, control, closing)
    return config


def test_layers_are_told_and_buffers_are_taken_and_given_back(engine: Engine) -> None:
    with ExitStack() as closing:
        config = begin(engine, job(), closing)
        assert (config.tp_comm_overlap, config.tp_comm_overlap_rs_dgrad) == (True, True)
        [(shape, tp, settings)] = engine.opened
        assert (shape, tp) == ([2 * 64, 64], 2), "tokens of a micro-batch by the hidden size"
        assert settings["quantization_modes"] == [Mode.NONE]
        summed = {"proj_fprop", "fc2_fprop", "qkv_dgrad", "fc1_dgrad"}
        assert settings["ub_cfgs"].keys() == summed
        assert {each["method"] for each in settings["ub_cfgs"].values()} == {"ring_exchange"}
        assert os.environ["UB_SKIPMC"] == "1"
        assert int(os.environ["UB_TIMEOUT"]) > 10 * 365 * 24 * 3600, "a kernel that gives up goes on with wrong results"
        assert not engine.said
    assert engine.said == ["met", "computed", "given back"], "after every rank has come to the end"


def test_in_fp8_what_is_gathered_is_in_fp8(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UB_SKIPMC", "0")
    with ExitStack() as closing:
        begin(engine, job(precision={"dtype": "bf16", "fp8": {"recipe": "delayed"}}), closing)
    assert engine.opened[0][2]["quantization_modes"] == [Mode.FP8]
    assert os.environ["UB_SKIPMC"] == "0", "the user's word"


def test_after_a_failure_nothing_is_taken_from_under_the_others(engine: Engine) -> None:
    closing = ExitStack()
    begin(engine, job(), closing)
    assert not closing.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert not engine.said


def test_who_switches_it_off_has_none(engine: Engine) -> None:
    with ExitStack() as closing:
        assert not begin(engine, job(overlaps=False), closing).tp_comm_overlap
    assert not engine.opened


OBSTACLES = {
    "closed": "GPU 1 cannot open the memory of GPU 0",
    "another machine": "cannot access each other's GPUs on one machine",
    "no such GPU": "cannot access each other's GPUs on one machine",
    "old": "this version of Transformer Engine",
    "refused": "its buffers could not be opened: invalid device context",
    "unable": "its buffers could not be opened: Launch app with UB_SKIPMC=1",
}


@pytest.mark.parametrize("why", OBSTACLES)
def test_a_machine_that_has_no_way(
    why: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who demands it is told; any other job trains without, and its log says why."""
    if why == "closed":
        show_gpus(monkeypatch, can_device_access_peer=False)
    if why == "no such GPU":
        show_gpus(monkeypatch, device_count=1)
    if why == "old":
        del engine.UserBufferQuantizationMode
    if why == "refused":
        engine.fails = RuntimeError("userbuffers-host.cpp:100 in function: CUDA Error:\ninvalid device context")
    if why == "unable":
        engine.fails = AssertionError("Launch app with UB_SKIPMC=1")
    tp = 0 if why == "another machine" else 1
    with ExitStack() as closing:
        assert not begin(engine, job(), closing, tp=tp, is_first=True).tp_comm_overlap
    told = capsys.readouterr().out
    assert told == f"tensor parallelism does not overlap: {told.partition(': ')[2]}"
    assert OBSTACLES[why] in told
    with (
        refused("unavailable_overlap", "tp_comm_overlap", OBSTACLES[why]),
        ExitStack() as closing,
    ):
        begin(engine, job(overlaps=True), closing, tp=tp)
    assert not engine.opened
    assert ("given back" in engine.said) == (why in ("refused", "unable")), "what a rank has got by then"
    assert not capsys.readouterr().out


@pytest.mark.parametrize("overlaps", [True, None])
def test_a_rank_that_alone_is_refused_its_buffers_ends_the_run_before_torch_does(
    overlaps: bool | None, engine: Engine
) -> None:
    """The others wait for it within Transformer Engine, and torch would end them after ten minutes, for a timeout."""
    engine.fails = RuntimeError("userbuffers-host.cpp:640 in function register: CUDA Error: out of memory")
    engine.others_are_back = False
    with (
        refused("overlap_differs_across_ranks", "out of memory", "tp_comm_overlap=false", kind=JobError),
        ExitStack() as closing,
    ):
        begin(engine, job(overlaps=overlaps), closing)
    [patience] = engine.patience
    assert patience is not None
    assert 60 <= patience <= 300


def test_who_has_its_buffers_waits_for_the_others_as_long_as_it_takes(engine: Engine) -> None:
    engine.others_are_back = False
    with ExitStack() as closing:
        assert begin(engine, job(), closing).tp_comm_overlap
    assert engine.patience == [None]


def test_torchs_layers_have_none(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as closing:
        assert not begin(engine, job(), closing, layers="torch", is_first=True).tp_comm_overlap
    assert not capsys.readouterr().out, "the layers are told of elsewhere"
    with refused("unavailable_overlap", "rank 0"), ExitStack() as closing:
        begin(engine, job(overlaps=True), closing, layers="torch")
