"""Which number formats the planned GPU multiplies in."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.planning.forecast import Forecast
from orchestrator.spec.job import JobSpec


def unsupported_formats(job: JobSpec, forecast: Forecast) -> Iterator[Problem]:
    """What stops a job in FP8 or FP4 on its GPU."""
    yield from _cannot_multiply(job, forecast)
    yield from _cannot_scale_blocks(job, forecast)


def _cannot_multiply(job: JobSpec, forecast: Forecast) -> Iterator[Problem]:
    """FP8 is of Ada's, Hopper's and later GPUs, MXFP8 and NVFP4 of Blackwell's; what is only assumed has them."""
    device, narrow = forecast.device, job.precision.quantization
    if narrow is None or forecast.choice.is_assumed:
        return
    if narrow.is_microscaled:
        if not device.has_microscaling:
            message = f"{device.name} does not multiply in {narrow.number_format.upper()}"
            hint = "use a B200, GB200 or B300, write fp8 with another recipe, or leave it out"
            paths = (f"precision.{narrow.field}.recipe", "launch.gpu")
            yield Problem(message, paths, hint, code="gpu_without_microscaling")
        return
    if "fp8" in device.peak_flops:
        return
    message = f"{device.name} does not multiply in FP8"
    hint = "leave out precision.fp8, or use an Ada, Hopper or newer GPU"
    yield Problem(message, ("precision.fp8", "launch.gpu"), hint, code="gpu_without_fp8")


def _cannot_scale_blocks(job: JobSpec, forecast: Forecast) -> Iterator[Problem]:
    """Transformer Engine has blockwise scaling for Hopper's and later GPUs."""
    device, fp8 = forecast.device, job.precision.fp8
    if fp8 is None or fp8.recipe != "blockwise" or device.generation != "Ada" or forecast.choice.is_assumed:
        return
    message = f"{device.name}, an Ada GPU, only supports scaling whole tensors"
    hint = "write delayed or tensorwise"
    yield Problem(message, ("precision.fp8.recipe", "launch.gpu"), hint, code="gpu_without_fp8_recipe")
