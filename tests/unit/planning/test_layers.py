"""The layers of a job that leaves them open."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shipped import SHIPPED
from support.this_machine import Gpus, Libraries

from orchestrator.kernel_selection import layers
from orchestrator.kernel_selection.layers import WORTH
from orchestrator.planning import estimates
from orchestrator.planning.estimates import DeviceEstimates, machine_of
from orchestrator.planning.hardware import Device, device_named, planned_device
from orchestrator.planning.time import estimate_time
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

WORDS = 131072
SPLIT = ("launch.gpus_per_node=2", "parallelism.tensor_model_parallel_size=2", "batch.global_batch_size=16")
WAITING = (*SPLIT, "batch.micro_batch_size=1")
"""Single sequences of 1.7B over two GPUs: the host holds them up, and they cannot be a CUDA graph."""


def small(*changes: str) -> JobSpec:
    return load_job([SHIPPED["gpt-1.7b"]], list(changes)).job


def layers_of(job: JobSpec, device: Device) -> tuple[str, str]:
    chosen = layers.layers_of(job, machine_of(device), DeviceEstimates(WORDS, device))
    return chosen.layers, chosen.why


@pytest.fixture
def engine(libraries: Libraries) -> None:
    """Transformer Engine is there, as far as a plan looks."""
    libraries.there("transformer_engine")


@pytest.mark.usefixtures("engine")
def test_torchs_are_taken_where_the_host_holds_up_the_others() -> None:
    h200, job = device_named("H200"), small(*WAITING)
    engines, torchs = (estimate_time(job, WORDS, name, h200).step_seconds for name in ("transformer_engine", "torch"))
    saved = 1 - torchs / engines
    assert saved > WORTH
    why = f"auto: the host holds up Transformer Engine's, and a step takes {saved:.0%} less"
    assert layers_of(job, h200) == ("torch", why)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("gpu", "changes"),
    [
        ("H200", (*SPLIT, "batch.micro_batch_size=4")),
        ("H200", ("batch.micro_batch_size=1",)),
        ("H200", (*WAITING, "parallelism.sequence_parallel=true", "parallelism.tp_comm_overlap=true")),
        ("H200", (*WAITING, "precision.fp8={}")),
        ("H200", (*WAITING, "model.sliding_window=512")),
        ("H200", (*WAITING, "runtime.layers=transformer_engine")),
        ("A100", WAITING),
    ],
    ids=["large", "captured", "overlap", "fp8", "window", "pinned", "not-measured"],
)
def test_else_transformer_engines_are(gpu: str, changes: tuple[str, ...]) -> None:
    assert layers_of(small(*changes), device_named(gpu))[0] == "transformer_engine"


@pytest.mark.usefixtures("engine")
def test_not_where_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = device_named("H200")
    monkeypatch.setattr(estimates, "capacity", lambda memory, device: "does not fit")
    assert layers.saved_by_torch(small(*WAITING), machine_of(h200), DeviceEstimates(WORDS, h200)) == 0
    assert layers.layers_of(small(*WAITING), machine_of(h200), DeviceEstimates(WORDS, h200)).saved_by_torch == 0
    assert layers_of(small(*WAITING), h200)[0] == "transformer_engine"


@pytest.mark.parametrize(
    ("job_gpu", "cluster", "profile", "here", "expected"),
    [
        (None, None, None, [], None),
        (None, None, None, ["NVIDIA H200"], None),
        ("H200", None, None, [], "transformer_engine"),
        ("H200", None, None, ["NVIDIA H200"], None),
        ("H200", None, None, ["NVIDIA A100-SXM4-80GB"], "transformer_engine"),
        ("H200", None, None, ["a GPU without a datasheet"], "transformer_engine"),
        ("H200", None, "layers: torch", [], "torch"),
        ("H200", None, "layers: torch", ["NVIDIA H200"], None),
        ("H200", None, "layers: transformer_engine", [], "transformer_engine"),
        (None, {}, None, [], "transformer_engine"),
        (None, {"gpu": "H200"}, None, ["NVIDIA H200"], "transformer_engine"),
        (None, {"gpu": "H200"}, "layers: torch", [], "torch"),
        (None, {"gpu": "H200", "layers": "transformer_engine"}, "layers: torch", [], "transformer_engine"),
        ("H200", {"gpu": "A100", "layers": "torch"}, None, ["NVIDIA H200"], "torch"),
        ("cpu", {"layers": "transformer_engine"}, None, [], None),
    ],
)
def test_a_machine_that_is_named_has_its_own_layers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job_gpu: str | None,
    cluster: dict[str, str] | None,
    profile: str | None,
    here: list[str],
    expected: str | None,
    gpus: Gpus,
) -> None:
    """`layers` of the device that is planned for: None where those count that are installed here."""
    monkeypatch.chdir(tmp_path)
    gpus.are(here)
    if profile is not None:
        Path("gpus").mkdir()
        Path("gpus/H200.yaml").write_text(f"base: H200\n{profile}\n")
    job = small(*([f"launch.gpu={job_gpu}"] if job_gpu else []))
    spec = None if cluster is None else ClusterSpec(name="site", **cluster)
    device = planned_device.device_of(job, spec).device
    assert device.layers == expected
    planned, why = layers.layers_there(job, machine_of(device))
    assert planned == (expected or "torch")
    assert why.endswith("installed here") == (expected is None and not device.is_cpu)


def test_nothing_is_saved_of_what_is_not_there() -> None:
    why = "auto: Transformer Engine is not installed here"
    assert layers_of(small(*WAITING), device_named("H200")) == ("torch", why)
