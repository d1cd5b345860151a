"""The layers that ranks take where the spec leaves them open, or asks for what is not there."""

from __future__ import annotations

from support.refused import refused
from support.this_machine import Libraries

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
from typing import Any

import pytest
import torch
from support.reference_times import PADDED_VOCAB, job_of
from support.training import layout, tiny_job

from orchestrator.errors import MissingDependency
from orchestrator.runtime.layers.layer_backend import choose_layers
from orchestrator.runtime.layers.transformer_engine import availability as engine_module
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec

WORDS = 384
H200, UNKNOWN = (
    Device("cuda", torch.device("cuda", 0), "nccl", name) for name in ("NVIDIA H200", "NVIDIA of tomorrow")
)
CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")
RANK_0 = Ranks(rank=0, world_size=2, tp=0, tp_size=1, pp=0, pp_size=2, dp=0, dp_size=1, num_chunks=1)
STAGES = {"parallelism": layout(pp=2), "model": {"position_embedding_type": "rope", "num_layers": 2}}
WAITS = tiny_job("waits", **STAGES)
"""Tiny layers on two stages: the host holds them up, and they cannot be a CUDA graph."""
CAPTURED = tiny_job("captured")
AS_PLANNED, SLOW = 6e-6, 15.5e-6
"""Seconds in which hosts start a kernel."""


class WithAnother:
    """Agrees with one more rank, which lacks Transformer Engine or, by its plan, takes torch's layers, or neither."""

    def __init__(self, says: str | None = None) -> None:
        self._says = says

    def any(self, own: bool) -> bool:
        return self._says == "lacks it" or own

    def gather_to_first(self, own: str | None) -> list[str | None]:
        return [own, self._says if self._says != "lacks it" else None]

    def from_first(self, said: str | None) -> str | None:
        return said


@pytest.fixture
def engine(libraries: Libraries, request: pytest.FixtureRequest) -> None:
    """Whether Transformer Engine is there, as far as a rank looks."""
    found = libraries.there if request.param else libraries.missing
    found("transformer_engine")


@pytest.mark.parametrize(
    ("engine", "job", "device", "another", "layers", "said"),
    [
        (
            True,
            WAITS,
            H200,
            None,
            "torch",
            "the layers are torch's: with Transformer Engine's this GPU would wait for its host",
        ),
        (True, CAPTURED, H200, None, "transformer_engine", ""),
        (True, WAITS, UNKNOWN, None, "transformer_engine", ""),
        (True, CAPTURED, H200, "lacks it", "torch", ""),
        (True, CAPTURED, H200, "its host is slow", "torch", "the layers are torch's: its host is slow (rank 1)"),
        (False, WAITS, H200, None, "torch", ""),
        (True, WAITS, CPU, None, "torch", ""),
        (
            True,
            tiny_job("pinned", runtime={"layers": "transformer_engine"}, **STAGES),
            H200,
            None,
            "transformer_engine",
            "",
        ),
        (True, tiny_job("lora", model={"lora": {"rank": 4}}), H200, None, "torch", ""),
    ],
    ids=["waits", "captured", "unknown", "another-has-none", "another-waits", "has-none", "cpu", "pinned", "adapters"],
    indirect=["engine"],
)
def test_what_is_taken(
    engine: None,
    job: JobSpec,
    device: Device,
    another: str | None,
    layers: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    control: Any = WithAnother(another)
    assert choose_layers(job, device, WORDS, RANK_0, control, AS_PLANNED, None) == layers
    told = capsys.readouterr().out
    assert told.count("\n") == bool(said)
    assert said in told


@pytest.mark.parametrize("engine", [False], indirect=True)
@pytest.mark.parametrize(
    ("device", "message"), [(H200, "it is not installed"), (CPU, "it needs a GPU")], ids=["gpu", "cpu"]
)
def test_what_is_asked_for_must_be_there(engine: None, device: Device, message: str) -> None:
    job, control = tiny_job("pinned", runtime={"layers": "transformer_engine"}), WithAnother()
    asked: Any = control
    with refused("missing_dependency", "runtime.layers", message, kind=MissingDependency):
        choose_layers(job, device, WORDS, RANK_0, asked, AS_PLANNED, None)


@pytest.mark.parametrize("engine", [False], indirect=True)
def test_one_that_does_not_load_is_told_of(
    engine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_module, "ENGINE_TROUBLE", "ImportError: undefined symbol")
    pinned, control = tiny_job("pinned", runtime={"layers": "transformer_engine"}), WithAnother()
    asked: Any = control
    does_not_load = "Transformer Engine is installed, but does not load (ImportError: undefined symbol)"
    assert choose_layers(CAPTURED, H200, WORDS, RANK_0, asked, AS_PLANNED, None) == "torch"
    assert capsys.readouterr().out == f"the layers are torch's: {does_not_load} (rank 0)\n"
    with refused("missing_dependency", "runtime.layers", does_not_load, kind=MissingDependency):
        choose_layers(pinned, H200, WORDS, RANK_0, asked, AS_PLANNED, None)


PIPELINE = job_of("gpt-1.7b", pp=2, micro=1, batch=16)


@pytest.mark.parametrize("engine", [True], indirect=True)
@pytest.mark.parametrize(
    ("seconds", "before", "layers", "said"),
    [
        (AS_PLANNED, None, "transformer_engine", ""),
        (SLOW, None, "torch", "the layers are torch's: with Transformer Engine's this GPU would wait for its host"),
        (SLOW, "transformer_engine", "transformer_engine", "are Transformer Engine's: this run began with them"),
        (AS_PLANNED, "torch", "torch", "are torch's: this run began with them"),
        (SLOW, "torch", "torch", "would wait for its host"),
        (AS_PLANNED, "transformer_engine", "transformer_engine", ""),
        (SLOW, "of another version", "torch", "would wait for its host"),
    ],
)
def test_a_slow_host_decides_for_runs_that_begin(
    engine: None, seconds: float, before: str | None, layers: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not as one would expect is said, in a line."""
    control: Any = WithAnother()
    assert choose_layers(PIPELINE, H200, PADDED_VOCAB, RANK_0, control, seconds, before) == layers
    told = capsys.readouterr().out
    assert told.count("\n") == bool(said)
    assert said in told


@pytest.mark.parametrize("engine", [True], indirect=True)
@pytest.mark.parametrize(
    "changed",
    [
        {"precision": {"dtype": "bf16", "fp8": {}}},
        {"model": {"num_experts": 4, "moe_router_topk": 2, "moe_grouped_gemm": True, "add_bias_linear": False}},
    ],
    ids=["fp8", "grouped products"],
)
def test_a_run_with_torchs_layers_that_is_to_do_what_they_cannot_changes_them(
    engine: None, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    control: Any = WithAnother()
    job = tiny_job("changed", **changed)
    assert choose_layers(job, H200, WORDS, RANK_0, control, AS_PLANNED, "torch") == "transformer_engine"
    assert capsys.readouterr().out == "the layers are Transformer Engine's, and were others in the last start\n"


@pytest.mark.parametrize("engine", [False], indirect=True)
def test_a_run_that_cannot_go_on_with_its_layers_says_so(engine: None, capsys: pytest.CaptureFixture[str]) -> None:
    control: Any = WithAnother()
    layers = choose_layers(PIPELINE, H200, PADDED_VOCAB, RANK_0, control, AS_PLANNED, "transformer_engine")
    assert layers == "torch"
    expected = (
        "the layers are torch's, and were others in the last start: Transformer Engine is not there on every rank"
    )
    assert expected in capsys.readouterr().out
