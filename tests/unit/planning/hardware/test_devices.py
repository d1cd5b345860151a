"""Devices by name, calibrated profiles over them, and the one that a job is planned for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused
from support.this_machine import Gpus

from orchestrator.errors import SpecError, UserError
from orchestrator.planning.hardware import device_named, device_of, shipped, shipped_names
from orchestrator.planning.hardware.devices import calibrated
from orchestrator.planning.hardware.profile_text import profile_text
from orchestrator.planning.hardware.profiles import GPU_PROFILE, GpuProfile, MeasuredEfficiency
from orchestrator.planning.time import estimate_time
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.loading import load_document_text


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's own profiles; the project is an empty folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "config" / "orchestrator" / "gpus"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.usefixtures("own")
def test_every_shipped_device_is_whole(name: str) -> None:
    device = device_named(name.lower())
    assert device.name == name
    assert device.source
    assert device.gpus_per_node >= 1
    assert device.multiprocessors >= 1
    assert device.power_watts > 0
    assert device.is_cpu == (name == "cpu")
    peaks = device.peak_flops
    assert peaks["fp32"] <= peaks["fp16"] or device.is_cpu
    assert peaks.get("fp8", peaks["fp16"]) >= peaks["fp16"]
    assert device.memory_bandwidth > device.link_bandwidth > device.network_bandwidth * 0.4
    assert device.memory_bandwidth >= device.host_bandwidth > 0
    assert all(0 < share <= 1 for share in vars(device.efficiency).values())


def test_names_are_told_apart() -> None:
    assert len(set(shipped_names())) == len(shipped_names())


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("nvidia_h100_80gb_hbm3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("a100_80gb", "A100"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("CPU", "cpu"),
    ],
)
@pytest.mark.usefixtures("own")
def test_names_of_cuda_and_of_clusters(written: str, name: str) -> None:
    assert device_named(written).name == name


@pytest.mark.usefixtures("own")
def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with refused("unknown_gpu", "'H10O'", "H100"):
        device_named("H10O")
    with refused("unknown_gpu", "'4090'", "GB200"):
        device_named("4090")


def test_a_calibrated_gpu_is_listed_once(own: Path) -> None:
    (own / "h200.yaml").write_text("base: H200\n")
    with pytest.raises(UserError) as caught:
        device_named("unheard")
    assert str(caught.value).lower().count(" h200,") == 1


@given(st.text(max_size=40))
def test_any_text_is_a_device_or_refused(name: str) -> None:
    try:
        assert device_named(name).name
    except UserError as error:
        assert "unknown GPU" in str(error)  # noqa: PT017 - both ends are right


def test_a_profile_goes_over_the_datasheet(own: Path) -> None:
    (own / "H200.yaml").write_text("base: H200\nefficiency: {gemm: 0.61, link: 0.5}\nnetwork_bandwidth: 2.5e10\n")
    for name in ("h200", "NVIDIA H200"):
        device = device_named(name)
        assert (device.efficiency.gemm, device.efficiency.link, device.network_bandwidth) == (0.61, 0.5, 2.5e10)
        assert device.efficiency.memory == shipped_efficiency("H200").memory
        assert device.peak_flops["bf16"] == 989e12
    assert shipped_efficiency("NVIDIA H200").gemm != 0.61, "the runtime's MFU is against the datasheet"


def shipped_efficiency(name: str) -> Any:
    device = shipped(name)
    assert device is not None
    return device.efficiency


def test_the_project_goes_before_the_person(own: Path, tmp_path: Path) -> None:
    (own / "fast.yaml").write_text("base: H100\nefficiency: {gemm: 0.5}\n")
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "fast.yaml").write_text("base: H100\nefficiency: {gemm: 0.6}\n")
    assert device_named("fast").efficiency.gemm == 0.6
    with refused("unknown_gpu", "fast"):
        device_named("fost")


def test_a_wrong_profile_is_refused_with_every_problem(own: Path) -> None:
    (own / "mine.yaml").write_text("base: H100\nefficiency:\n  gem: 0.5\n  memory: -1\n")
    with pytest.raises(SpecError) as error:
        device_named("mine")
    text = str(error.value)
    assert "mine.yaml:3:3" in text
    assert "did you mean gemm" in text
    assert "mine.yaml:4:3" in text


@pytest.mark.parametrize(
    "text",
    [
        "link_bandwidth: 1.0e-300",
        "network_bandwidth: 1.0e+300",
        "efficiency: {gemm: 1.0e-300}",
        "efficiency: {memory: 1.0e+4}",
        "efficiency: {launch: 1.0e+300}",
        "efficiency: {link_latency: 0}",
    ],
)
def test_figures_of_no_machine_are_refused(own: Path, text: str) -> None:
    (own / "mine.yaml").write_text(f"base: H100\n{text}\n")
    with pytest.raises(SpecError, match=r"mine\.yaml:2"):
        device_named("mine")


@pytest.mark.parametrize("extreme", [0, 1])
def test_the_worst_and_the_best_machine_have_a_step_time(make_job: Any, extreme: int) -> None:
    base = shipped("H100")
    assert base is not None
    share, latency, bandwidth = ((1e-9, 1000.0)[extreme], (3600.0, 1e-300)[extreme], (1000.0, 1e18)[extreme])
    seconds = {"link_latency", "network_latency", "launch"}
    efficiency = {name: latency if name in seconds else share for name in MeasuredEfficiency.model_fields}
    profile = GpuProfile.model_validate(
        {"base": "H100", "efficiency": efficiency, "link_bandwidth": bandwidth, "network_bandwidth": bandwidth}
    )
    degrees = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "data_parallel_size": 2}
    job = make_job(parallelism=degrees, batch={"global_batch_size": 16}, launch={"nodes": 4})
    found = estimate_time(job, 512, "torch", calibrated("mine", base, profile))
    assert 0 < found.step_seconds < math.inf
    assert all(0 <= part < math.inf for part in found.parts.values())


def test_a_profile_needs_a_known_base(own: Path) -> None:
    (own / "mine.yaml").write_text("base: H1O0\n")
    with refused("unknown_gpu", "mine.yaml: base: ", "'H1O0'", "H100"):
        device_named("mine")


SHARES = st.floats(1e-6, 100.0).map(lambda value: float(f"{value:.4g}"))


@given(
    efficiency=st.dictionaries(st.sampled_from(sorted(MeasuredEfficiency.model_fields)), SHARES),
    measured_on=st.none() | st.sampled_from(["4 x NVIDIA H200", 'a "name": # of it', "ä"]),
    memory=st.none() | st.integers(1, 10**12),
    measured_with=st.lists(st.sampled_from(["orchestrator calibrate", "steps of run a/b: 3"])),
)
def test_a_written_profile_is_read_back(
    efficiency: dict[str, float], measured_on: str | None, memory: int | None, measured_with: list[str]
) -> None:
    profile = GpuProfile(
        base="H100",
        efficiency=MeasuredEfficiency.model_validate(efficiency),
        memory_bytes=memory,
        measured_on=measured_on,
        measured_with=measured_with,
    )
    assert load_document_text(profile_text(profile), "gpu.yaml", GPU_PROFILE).value == profile


def cluster(**fields: Any) -> ClusterSpec:
    return ClusterSpec(name="alps", **fields)


@pytest.mark.usefixtures("own")
def test_the_job_names_its_gpu(make_job: Any, gpus: Gpus) -> None:
    chosen = device_of(make_job(launch={"gpu": "a100"}), cluster(gpu="H200"))
    assert (chosen.device.name, chosen.how, chosen.is_assumed) == ("A100", "launch.gpu", False)
    with pytest.raises(SpecError) as error:
        device_of(make_job(launch={"gpu": "B2OO"}), None)
    assert error.value.problems[0].paths == ("launch.gpu",)


@pytest.mark.usefixtures("own")
def test_the_cpu_is_planned_for_where_the_job_says_so(make_job: Any, gpus: Gpus) -> None:
    assert device_of(make_job(runtime={"device": "cpu"}), cluster(gpu="H200")).device.name == "cpu"


@pytest.mark.usefixtures("own")
def test_the_cluster_names_its_gpus(make_job: Any, gpus: Gpus) -> None:
    gpus.are(["NVIDIA L4"])  # of the login node, where the job does not run
    assert device_of(make_job(), cluster(gpu="H200", gpu_type="a100")).device.name == "H200"
    assert device_of(make_job(), cluster(gpu_type="nvidia_a100_80gb")).device.name == "A100"
    assumed = device_of(make_job(), cluster(gpu_type="big"))
    assert (assumed.device.name, assumed.is_assumed) == ("H100", True)
    assert assumed.how == "assumed: gpu_type big of cluster profile alps is not known; set its gpu"
    with refused("unknown_gpu", "alps", "gpu", "'H2OO'"):
        device_of(make_job(), cluster(gpu="H2OO"))


@pytest.mark.usefixtures("own")
def test_else_this_machines_gpu_and_else_an_h100(make_job: Any, gpus: Gpus) -> None:
    assumed = device_of(make_job(), None)
    assert (assumed.device.name, assumed.is_assumed) == ("H100", True)
    gpus.are(["NVIDIA RTX A4000"])
    assert device_of(make_job(), None).is_assumed, "a GPU without a datasheet here"
    gpus.are(["NVIDIA H200"])
    found = device_of(make_job(), None)
    assert (found.device.name, found.how, found.is_assumed) == ("H200", "this machine's GPU", False)
