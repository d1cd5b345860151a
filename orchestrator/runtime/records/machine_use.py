"""How busy this node is: processors, memory, disk and network by psutil, GPUs by NVML where pynvml is installed.

Names and units are those of MLflow's own system metrics.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

Values = dict[str, float | list[float | None]]

_MEGABYTE = 1e6
_NVML = "pynvml"


class MachineUse:
    """Measures a node. `folder`: the disk that matters; `gpus`: UUIDs of the GPUs that the job may use.

    Percentages of the processors are since the measurement before, and of the thread that makes this object alone;
    network traffic is counted from here on.
    """

    def __init__(self, folder: Path, gpus: Sequence[str] = ()) -> None:
        self._folder = folder
        self._gpus = Gpus(gpus)
        self._received, self._sent = _traffic()
        psutil.cpu_percent()  # the first call only begins to count

    def measure(self) -> Values:
        """One value by name, of GPUs a list; None in it for a GPU that does not say. Takes a few milliseconds."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self._folder))
        received, sent = _traffic()
        values: Values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": round(memory.used / _MEGABYTE, 1),
            "system_memory_usage_percentage": round(100 * memory.used / memory.total, 1),
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": round(disk.used / _MEGABYTE, 1),
            "disk_available_megabytes": round(disk.free / _MEGABYTE, 1),
            "network_receive_megabytes": round((received - self._received) / _MEGABYTE, 3),
            "network_transmit_megabytes": round((sent - self._sent) / _MEGABYTE, 3),
        }
        return values | self._gpus.measure()


class Gpus:
    """The GPUs of a job on this node, by NVML."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._nvml: Any = importlib.import_module(_NVML) if uuids and importlib.util.find_spec(_NVML) else None
        self._handles = self._open(uuids) if self._nvml is not None else []

    def measure(self) -> Values:
        """By name, a list with one value for each GPU; empty where nothing can be measured."""
        if not self._handles:
            return {}
        nvml = self._nvml
        memory = [self._ask(nvml.nvmlDeviceGetMemoryInfo, gpu) for gpu in self._handles]
        busy = [self._ask(nvml.nvmlDeviceGetUtilizationRates, gpu) for gpu in self._handles]
        power = [self._ask(nvml.nvmlDeviceGetPowerUsage, gpu) for gpu in self._handles]
        return {
            "gpu_utilization_percentage": [_of(said, lambda rates: float(rates.gpu)) for said in busy],
            "gpu_memory_usage_megabytes": [_of(said, lambda m: round(m.used / _MEGABYTE, 1)) for said in memory],
            "gpu_memory_usage_percentage": [_of(said, lambda m: round(100 * m.used / m.total, 1)) for said in memory],
            "gpu_power_usage_watts": [_of(said, lambda milliwatts: round(milliwatts / 1000, 1)) for said in power],
        }

    def _open(self, uuids: Sequence[str]) -> list[Any]:
        """NVML's handles; none where one cannot be had, so that numbers stay those of the job's devices."""
        try:
            self._nvml.nvmlInit()
            return [self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except self._nvml.NVMLError:
            return []

    def _ask(self, question: Callable[[Any], Any], gpu: Any) -> Any:
        """The answer; None from a GPU that does not know."""
        try:
            return question(gpu)
        except self._nvml.NVMLError:
            return None


def _of(said: Any, value: Callable[[Any], float]) -> float | None:
    return None if said is None else value(said)


def _traffic() -> tuple[int, int]:
    """Bytes received and sent by all interfaces since the machine started, what it says to itself left out."""
    counters = [each for name, each in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    return sum(each.bytes_recv for each in counters), sum(each.bytes_sent for each in counters)
