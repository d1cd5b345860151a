"""Which device a job is planned for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from orchestrator.errors import Problem, SpecError, UserError
from orchestrator.planning.hardware.devices import CPU, Device, device_named
from orchestrator.planning.hardware.local_gpus import gpus_here
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

ASSUMED, ASSUMED_MICROSCALING = "H100", "B200"
"""What is planned for where nothing tells; the second for a job in MXFP8 or NVFP4, which the first does not have."""


class DeviceChoice(NamedTuple):
    """A device and how it was chosen."""

    device: Device
    how: str
    """For people: "launch.gpu", "--gpu", "this machine's GPU", "assumed: …"."""
    is_assumed: bool = False
    """Whether nothing told which GPU it will be."""


def device_of(job: JobSpec, cluster: ClusterSpec | None) -> DeviceChoice:
    """The device that memory and time of a job are planned for.

    The job's `launch.gpu`; the CPU where `runtime.device` says so; the cluster profile's `gpu`, or its `gpu_type`; this
    machine's GPU where the job runs here; else an H100, or a B200 in MXFP8 and NVFP4. Raises SpecError at `launch.gpu`,
    and UserError for the profile's, when there is no such GPU.

    A GPU that is named, by the job or by its cluster, is another machine's unless this one has it. What such a machine
    has installed cannot be looked up: a profile says it, else it is Transformer Engine.
    """
    choice = _chosen(job, cluster)
    is_named = cluster is not None or job.launch.gpu is not None
    layers = _layers_of(choice.device, cluster) if is_named and not choice.device.is_cpu else None
    return choice._replace(device=replace(choice.device, layers=layers))


def _chosen(job: JobSpec, cluster: ClusterSpec | None) -> DeviceChoice:
    if job.launch.gpu is not None:
        return DeviceChoice(_of_the_job(job.launch.gpu), "launch.gpu")
    if job.runtime.device == "cpu":
        return DeviceChoice(device_named(CPU), "runtime.device is cpu")
    if cluster is not None:
        return _of_the_cluster(cluster, _assumed(job))
    here = _of_this_machine()
    if here is not None:
        return DeviceChoice(here, "this machine's GPU")
    return DeviceChoice(_assumed(job), "assumed: name yours with launch.gpu", is_assumed=True)


def _layers_of(device: Device, cluster: ClusterSpec | None) -> Layers | None:
    """Whose layers a device that is named has; None where that is this machine's."""
    if cluster is not None and cluster.layers is not None:
        return cluster.layers
    here = _of_this_machine() if cluster is None else None
    if here is not None and here.base == device.base:
        return None
    return device.layers or "transformer_engine"


def _of_the_job(name: str) -> Device:
    try:
        return device_named(name)
    except SpecError:
        raise
    except UserError as error:
        raise SpecError(problems=[Problem(str(error), ("launch.gpu",), code="unknown_gpu")]) from error


def _assumed(job: JobSpec) -> Device:
    narrow = job.precision.quantization
    return device_named(ASSUMED_MICROSCALING if narrow is not None and narrow.is_microscaled else ASSUMED)


def _of_the_cluster(cluster: ClusterSpec, assumed: Device) -> DeviceChoice:
    if cluster.gpu is not None:
        try:
            return DeviceChoice(device_named(cluster.gpu), f"gpu of cluster profile {cluster.name}")
        except SpecError:
            raise
        except UserError as error:
            raise UserError(f"cluster profile {cluster.name}: gpu: {error}", code=error.code) from error
    if cluster.gpu_type is not None:
        device = _if_known(cluster.gpu_type)
        if device is not None:
            return DeviceChoice(device, f"gpu_type of cluster profile {cluster.name}")
        how = f"assumed: gpu_type {cluster.gpu_type} of cluster profile {cluster.name} is not known; set its gpu"
        return DeviceChoice(assumed, how, is_assumed=True)
    how = f"assumed: name the real one with gpu in cluster profile {cluster.name}"
    return DeviceChoice(assumed, how, is_assumed=True)


def _of_this_machine() -> Device | None:
    """From what the driver says, without asking a program."""
    models = gpus_here()
    return _if_known(models[0]) if models else None


def _if_known(name: str) -> Device | None:
    """SLURM's types of GPUs can be any word, and a machine can have a GPU that is in no list."""
    try:
        return device_named(name)
    except SpecError:
        raise
    except UserError:
        return None
