"""Calibrated GPUs: what was measured of one, in a file of its own that goes over the shipped figures."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from orchestrator.fields.base import Section
from orchestrator.fields.values import Count, Number, Positive, Text, empty_list
from orchestrator.spec.loading import load_document
from orchestrator.spec.messages.document import Document
from orchestrator.spec.sections.runtime import Layers

PROJECT_FOLDER = Path("gpus")
"""In the folder where the command is started."""

_SUFFIX = ".yaml"
GPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII)

Share = Annotated[float, Number(ge=1e-9, le=1000.0)]
"""Part of a datasheet figure. A CPU of many cores passes the nominal figures of one by far."""
Latency = Annotated[float, Number(gt=0.0, le=3600.0)]
"""Seconds. With more, times of whole trainings would be no numbers any more."""
Bandwidth = Annotated[float, Number(ge=1000.0, le=1e18)]
"""B/s."""


class _Part(Section):
    """Most commands read no profile, so the validators are built when one is."""

    model_config = ConfigDict(defer_build=True)


class MeasuredEfficiency(_Part):
    """Fractions of the datasheet that were reached; those that were not measured keep the shipped values."""

    gemm: Share | None = None
    """Of the peak: a matrix product that is large in every dimension, undisturbed by a power limit."""
    gemm_at_power_limit: Share | None = None
    """Of the peak: the most that consecutive products reach; 1 if no power limit applies."""
    attention_forward: Share | None = None
    """Of the peak: torch's attention."""
    attention_backward: Share | None = None
    """Of the peak: its backward pass."""
    fused_attention_forward: Share | None = None
    """Of the peak: Transformer Engine's attention."""
    fused_attention_backward: Share | None = None
    """Of the peak: its backward pass."""
    memory: Share | None = None
    """Of the memory's bandwidth."""
    link: Share | None = None
    """Of the link between the GPUs of a machine."""
    network: Share | None = None
    """Of the network between machines."""
    link_latency: Latency | None = None
    """Minimum seconds of a collective within a machine."""
    network_latency: Latency | None = None
    """Minimum seconds of a collective between machines."""
    launch: Latency | None = None
    """Seconds that the host takes to launch one kernel."""


class GpuProfile(_Part):
    """A calibrated GPU. Written by `orchestrator calibrate`; the name of the file is the name of the GPU."""

    base: Text
    """The shipped GPU whose datasheet applies."""
    efficiency: MeasuredEfficiency = MeasuredEfficiency()
    """What was measured."""
    memory_bytes: Count | None = None
    """Memory of a GPU, if it is not the usual one."""
    gpus_per_node: Positive | None = None
    """GPUs per machine, if it is not the usual number."""
    link_bandwidth: Bandwidth | None = None
    """B/s in one direction from one GPU to the others of its machine, if it is not the usual one."""
    network_bandwidth: Bandwidth | None = None
    """B/s in one direction and per GPU to other machines, if it is not the usual one."""
    layers: Layers | None = None
    """Layers that the environment of its jobs has, for plans with `runtime.layers: auto` made on another machine;
    transformer_engine by default."""
    measured_at: Text | None = None
    """Date of the measurements."""
    measured_on: Text | None = None
    """GPUs, and the versions that matter."""
    measured_with: list[Text] = Field(default_factory=empty_list)
    """The measurements, and the runs whose step times were used."""


GPU_PROFILE = Document(
    GpuProfile,
    noun="GPU profile",
    such_as="`base:` and `efficiency:`",
    written_by="orchestrator calibrate",
)


def user_folder() -> Path:
    """Where a person's own profiles are kept: `~/.config/orchestrator/gpus`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "orchestrator" / "gpus"


def known_gpus() -> dict[str, Path]:
    """Every profile by name; the project's go before a person's own."""
    found: dict[str, Path] = {}
    for folder in (user_folder(), PROJECT_FOLDER):
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            if GPU_NAME.fullmatch(path.stem):
                found[path.stem] = path
    return dict(sorted(found.items()))


def read_gpu(path: Path) -> GpuProfile:
    """The profile in a file. Raises SpecError with every problem in it."""
    return load_document(path, GPU_PROFILE).value
