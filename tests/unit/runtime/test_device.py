"""Which device a process takes, and the GPUs that it was promised."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orchestrator.errors import UserError
from orchestrator.runtime.processes.device import Device, GpuMissingError, grow_in_place, select_device
from orchestrator.runtime.processes.exits import outcome_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """machine(seen, given, rank): GPUs that torch sees, GPUs that SLURM gave, and this process's place."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr("orchestrator.runtime.processes.cpu_shim.install", lambda: None)

    def set_up(seen: int, given: str | None, rank: int = 0, *, built: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
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
    with pytest.raises(GpuMissingError, match=f"gave this job 8 GPUs on .*, and torch sees {seen}: ") as refused:
        select_device(choice)
    assert outcome_of(refused.value).cause == "gpu_error"


GPU = Device("cuda", torch.device("cpu"), "nccl", "a GPU")
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has told the allocator anything."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", [None, *VARIABLES])
def test_the_allocator_grows_in_place_unless_it_is_told_something(
    name: str | None, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    if name is not None:
        monkeypatch.setenv(name, "max_split_size_mb:512")
    grow_in_place(GPU)
    assert told == (["expandable_segments:True"] if name is None else [])
    grow_in_place(Device("cpu", torch.device("cpu"), "gloo", "cpu"))
    assert len(told) == (name is None)


def test_so_does_that_of_older_torch(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", told.append)
    grow_in_place(GPU)
    assert told == ["expandable_segments:True"]


def test_a_driver_that_extends_nothing_is_asked_for_blocks(
    quiet: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What torch says in WSL; where there is no memory at all, nothing is to be changed."""
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)

    def refuse(error: RuntimeError) -> None:
        told.clear()

        def fail(*arguments: object, **options: object) -> None:
            raise error

        monkeypatch.setattr(torch, "empty", fail)

    refuse(RuntimeError("CUDA driver error: unknown error\nException raised from map_handles"))
    grow_in_place(GPU)
    assert told == ["expandable_segments:True", "expandable_segments:False"]
    assert capsys.readouterr().out == (
        "GPU memory is taken in blocks of fixed sizes: this driver extends none (CUDA driver error: unknown error)\n"
    )
    refuse(torch.OutOfMemoryError("CUDA out of memory"))
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
    with pytest.raises(UserError, match=r"runtime\.device is cuda, but torch sees no CUDA device here"):
        select_device("cuda")


def test_who_wants_a_cpu_gets_it(machine: Any) -> None:
    machine(0, "8")
    assert select_device("cpu").kind == "cpu"
