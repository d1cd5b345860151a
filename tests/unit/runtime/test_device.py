"""Which device a process takes, and the GPUs that it was promised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.cuda import show_gpus
from support.refusals import refuse
from support.refused import refused

from orchestrator.runtime.processes.device import Device, GpuMissingError, grow_in_place, select_device
from orchestrator.runtime.processes.exits import outcome_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """machine(seen, given, rank): GPUs that torch sees, GPUs that SLURM gave, and this process's place."""
    chosen: list[int] = []
    show_gpus(monkeypatch, set_device=chosen.append, get_device_name="H100")
    monkeypatch.setattr("orchestrator.runtime.processes.cpu_shim.install", lambda: None)

    def set_up(seen: int, given: str | None, rank: int = 0, *, built: bool = True) -> None:
        show_gpus(monkeypatch, device_count=seen)
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        if given is None:
            monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
        else:
            monkeypatch.setenv("SLURM_GPUS_ON_NODE", given)

    return set_up


@pytest.mark.parametrize("choice", ["auto", "cuda"])
@pytest.mark.parametrize(("seen", "rank"), [(0, 0), (7, 7)])
def test_a_gpu_that_slurm_gave_and_torch_does_not_see(machine: Any, choice: Any, seen: int, rank: int) -> None:
    machine(seen, "8", rank)
    with refused("missing_gpu", "8 GPUs", f"sees {seen}: ", kind=GpuMissingError) as caught:
        select_device(choice)
    assert outcome_of(caught.value).cause == "gpu_error"


GPU = Device("cuda", torch.device("cpu"), "nccl", "a GPU")
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the allocator, of which the user has said nothing, is told."""
    settings: list[str] = []
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append, raising=False)
    return settings


@pytest.mark.parametrize("name", [None, *VARIABLES])
def test_the_allocator_grows_in_place_unless_it_is_told_something(
    name: str | None, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name is not None:
        monkeypatch.setenv(name, "max_split_size_mb:512")
    grow_in_place(GPU)
    assert told == (["expandable_segments:True"] if name is None else [])
    grow_in_place(Device("cpu", torch.device("cpu"), "gloo", "cpu"))
    assert len(told) == (name is None)


def test_so_does_that_of_older_torch(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", told.append)
    grow_in_place(GPU)
    assert told == ["expandable_segments:True"]


def test_a_driver_that_extends_nothing_is_asked_for_blocks(
    told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What torch says in WSL; where there is no memory at all, nothing is to be changed."""
    refuse(
        monkeypatch, "torch.empty", RuntimeError("CUDA driver error: unknown error\nException raised from map_handles")
    )
    grow_in_place(GPU)
    assert told == ["expandable_segments:True", "expandable_segments:False"]
    assert capsys.readouterr().out == (
        "GPU memory is allocated in blocks of fixed size: this driver cannot extend them (CUDA driver error: unknown "
        "error)\n"
    )
    told.clear()
    refuse(monkeypatch, "torch.empty", torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        grow_in_place(GPU)
    assert told == ["expandable_segments:True"]


def test_the_others_on_that_machine_are_not_blamed(machine: Any) -> None:
    machine(7, "8", 6)
    assert select_device("auto").kind == "cuda"


@pytest.mark.parametrize(
    ("given", "built"),
    [(None, True), ("0", True), ("8", False), ("some", True)],
    ids=["outside of SLURM", "a job without GPUs", "torch for CPUs", "another SLURM"],
)
def test_elsewhere_auto_goes_without(machine: Any, given: str | None, built: bool) -> None:
    machine(0, given, built=built)
    assert select_device("auto").kind == "cpu"
    with refused("no_gpu", "runtime.device"):
        select_device("cuda")


def test_who_wants_a_cpu_gets_it(machine: Any) -> None:
    machine(0, "8")
    assert select_device("cpu").kind == "cpu"
