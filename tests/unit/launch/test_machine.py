"""What a machine shows of its GPUs, without asking a library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.launch import machine
from orchestrator.planning.hardware import here
from orchestrator.spec.job import JobSpec


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine: folders where its GPUs would be seen."""
    for name in ("gpus", "dev"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(here, "_DRIVER", tmp_path / "gpus")
    monkeypatch.setattr(here, "_DEVICES", tmp_path / "dev")
    return tmp_path


def test_gpus_are_named_by_their_driver(driver: Path, make_job: Callable[..., JobSpec]) -> None:
    for number in range(2):
        (driver / "gpus" / f"0000:0{number}").mkdir()
        (driver / "gpus" / f"0000:0{number}" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert here.gpus_here() == ["NVIDIA H200", "NVIDIA H200"]
    assert here.gpus_counted() == 2
    assert machine.machine_for(make_job(runtime={})) == "NVIDIA H200"
    assert machine.machine_for(make_job(runtime={"device": "cpu"})) != "NVIDIA H200"


def test_gpus_are_counted_where_the_driver_says_nothing(driver: Path) -> None:
    assert here.gpus_counted() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (driver / "dev" / name).touch()
    assert here.gpus_counted() == 2


@pytest.mark.parametrize("device", ["kfd", "dxg", "nvmap"])
def test_some_gpus_cannot_be_counted(driver: Path, device: str) -> None:
    (driver / "dev" / device).touch()
    assert here.gpus_counted() is None


def test_versions_are_told_without_an_import() -> None:
    assert set(machine.versions()) <= {"torch", "megatron-core", "transformer-engine", "flash-attn-4"}
