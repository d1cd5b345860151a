"""`python -m orchestrator.runtime.calibration --output FILE`: measure the machine at hand; what was found is JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from orchestrator.run_directory.rundir import write_atomically
from orchestrator.runtime.calibration.kernels import GPU, SMALL, measure_kernels
from orchestrator.runtime.calibration.links import measure_links

_GPU_GATHER_BYTES = 512 << 20
_CPU_GATHER_BYTES = 16 << 20
_MOST_GPUS = 8


def main(arguments: list[str] | None = None) -> int:
    """Measure and write; returns the exit code."""
    options = _parser().parse_args(arguments)
    on_gpus = torch.cuda.is_available() and not options.cpu
    count = min(torch.cuda.device_count(), _MOST_GPUS) if on_gpus else 2
    links: dict[str, Any] = {"links": None}
    if count > 1:  # first, while nothing has been computed that a fork would inherit
        links = _links(count, on_gpus=on_gpus)
    found = {**(_measure_gpu if on_gpus else _measure_cpu)(options.seconds), **links}
    write_atomically(options.output, json.dumps(found, indent=1) + "\n")
    return 0


def _links(count: int, *, on_gpus: bool) -> dict[str, Any]:
    """The links between the devices, or why they cannot be measured: each device still can be, by itself."""
    try:
        return {"links": measure_links(count, _GPU_GATHER_BYTES if on_gpus else _CPU_GATHER_BYTES, on_gpus=on_gpus)}
    except Exception as error:  # whatever a network and its libraries raise, in this process or in those that talk
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"links": None, "links_failure": lines[-1] if lines else type(error).__name__}


def _measure_gpu(seconds: float) -> dict[str, Any]:
    device = torch.device("cuda", 0)
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    dtype, name = (torch.bfloat16, "bf16") if has_bf16 else (torch.float16, "fp16")
    return {
        "device": torch.cuda.get_device_name(device),
        "count": torch.cuda.device_count(),
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory,
        "dtype": name,
        "torch": torch.__version__,
        **measure_kernels(device, dtype, GPU, seconds),
    }


def _measure_cpu(seconds: float) -> dict[str, Any]:
    return {
        "device": "cpu",
        "count": os.cpu_count() or 1,
        "memory_bytes": None,
        "dtype": "fp32",
        "torch": torch.__version__,
        **measure_kernels(torch.device("cpu"), torch.float32, SMALL, seconds),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.runtime.calibration", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement but products on a GPU (0.5)")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU although there is a GPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
