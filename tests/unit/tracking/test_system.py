"""How busy nodes are: measured, written down, and read in whatever condition the file is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.runtime.records.machine_use import MachineUse
from orchestrator.tracking.measurements.system import Measurement, read_measurements, system_logs

# What nvidia-ml-py offers, of two GPUs of which the second does not know its power.
NVML = """
from types import SimpleNamespace

class NVMLError(Exception):
    pass

def nvmlInit():
    pass

def nvmlDeviceGetHandleByUUID(uuid):
    if not uuid.startswith("GPU-"):
        raise NVMLError("not found")
    return int(uuid.removeprefix("GPU-"))

def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(used=(gpu + 1) * 20_000_000_000, total=80_000_000_000)

def nvmlDeviceGetUtilizationRates(gpu):
    return SimpleNamespace(gpu=90 + gpu)

def nvmlDeviceGetPowerUsage(gpu):
    if gpu:
        raise NVMLError("not supported")
    return 651_234
"""


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def test_a_node_says_how_busy_it_is(tmp_path: Path) -> None:
    values = MachineUse(tmp_path).measure()
    assert all(isinstance(value, float | int) and value >= 0 for value in values.values())
    assert values["system_memory_usage_percentage"] != 0
    assert values["disk_available_megabytes"] != 0
    assert not [name for name in values if name.startswith("gpu")]


@pytest.mark.usefixtures("nvml")
def test_gpus_are_asked_through_nvml(tmp_path: Path) -> None:
    values = MachineUse(tmp_path, ["GPU-0", "GPU-1"]).measure()
    assert {name: value for name, value in values.items() if name.startswith("gpu")} == {
        "gpu_utilization_percentage": [90.0, 91.0],
        "gpu_memory_usage_megabytes": [20_000.0, 40_000.0],
        "gpu_memory_usage_percentage": [25.0, 50.0],
        "gpu_power_usage_watts": [651.2, None],
    }
    # Parts of a GPU have no such numbers, and the rest is measured all the same.
    assert "gpu_utilization_percentage" not in MachineUse(tmp_path, ["MIG-0"]).measure()


def test_lists_become_numbers_under_the_names_of_mlflow() -> None:
    measured = Measurement(
        1.0, 3, "node7", {"cpu_utilization_percentage": 4.0, "gpu_power_usage_watts": [600.0, None, 7.0]}
    )
    assert measured.flat() == {
        "cpu_utilization_percentage": 4.0,
        "gpu_0_power_usage_watts": 600.0,
        "gpu_2_power_usage_watts": 7.0,
    }


def line(iteration: int) -> dict[str, object]:
    return {"time": 1.5, "iteration": iteration, "host": "node7", "values": {"a": 1.0, "gpu_b": [2.0, None]}}


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    path = run.system_log(0)
    assert read_measurements(path, 7) == ([], 0)
    path.parent.mkdir()
    for iteration in range(5):
        append_line(path, line(iteration))
    (run.system / "notes.txt").write_text("")
    run.system_log(12).touch()
    assert system_logs(run) == {0: path, 12: run.system_log(12)}
    first, offset = read_measurements(path, limit=3)
    second, end = read_measurements(path, offset)
    assert [each.iteration for each in [*first, *second]] == [0, 1, 2, 3, 4]
    assert end == path.stat().st_size
    with open(path, "ab") as file:
        file.write(b'{"time": 1.5, "iter')
    assert read_measurements(path, end) == ([], end)  # a line that is being written
    append_line(path, line(5))  # and was torn
    assert [each.iteration for each in read_measurements(path, end)[0]] == [5]
    path.write_text(json.dumps(line(9)) + "\n")
    assert [each.iteration for each in read_measurements(path, end)[0]] == [9]


@given(st.binary() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_whatever_a_line_holds_the_others_are_read(tmp_path_factory: pytest.TempPathFactory, rubbish: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "rubbish.jsonl"
    whole = json.dumps(line(1)).encode()
    path.write_bytes(b"\n".join([whole, rubbish, whole, b""]))
    found, end = read_measurements(path)
    assert [each.iteration for each in found] == [1, 1]
    assert end == path.stat().st_size
