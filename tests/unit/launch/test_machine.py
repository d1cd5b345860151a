"""What a machine shows of its GPUs, without asking a library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.this_machine import Gpus

from orchestrator.launch import machine
from orchestrator.planning.hardware import local_gpus
from orchestrator.spec.job import JobSpec


def test_gpus_are_named_by_their_driver(gpus: Gpus, make_job: Callable[..., JobSpec]) -> None:
    gpus.are(["NVIDIA H200"] * 2)
    assert local_gpus.gpus_here() == ["NVIDIA H200", "NVIDIA H200"]
    assert local_gpus.gpus_counted() == 2
    assert machine.machine_for(make_job(runtime={})) == "NVIDIA H200"
    assert machine.machine_for(make_job(runtime={"device": "cpu"})) != "NVIDIA H200"


def test_gpus_are_counted_where_the_driver_says_nothing(gpus: Gpus) -> None:
    assert local_gpus.gpus_counted() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (gpus.devices / name).touch()
    assert local_gpus.gpus_counted() == 2


@pytest.mark.parametrize("device", ["kfd", "dxg", "nvmap"])
def test_some_gpus_cannot_be_counted(gpus: Gpus, device: str) -> None:
    (gpus.devices / device).touch()
    assert local_gpus.gpus_counted() is None


def test_versions_are_told_without_an_import() -> None:
    assert set(machine.versions()) <= {"torch", "megatron-core", "transformer-engine", "flash-attn-4"}
