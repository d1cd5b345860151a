"""Whether passes are CUDA graphs where a job leaves it open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.this_machine import Libraries

from orchestrator.kernel_selection import auto_values, cuda_graphs
from orchestrator.kernel_selection.cuda_graphs import with_graphs
from orchestrator.planning.estimates import DeviceEstimates, machine_of
from orchestrator.planning.forecast import forecast, planned_timeline
from orchestrator.planning.hardware.devices import Device, shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.plan import make_plan
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

SMALL: dict[str, Any] = {"num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 512}
LARGE: dict[str, Any] = {**SMALL, "hidden_size": 4096, "seq_length": 4096}
VOCAB = 51200


def gpu(name: str) -> Device:
    found = shipped(name)
    assert found is not None
    return found


def chooses_graphs(job: JobSpec, layers: Layers, device: Device) -> bool:
    return cuda_graphs.chooses_graphs(job, layers, machine_of(device), DeviceEstimates(VOCAB, device))


def settled(job: JobSpec, layers: Layers, device: Device) -> JobSpec:
    return auto_values.settled(job, layers, machine_of(device), DeviceEstimates(VOCAB, device))


@pytest.mark.parametrize(
    ("model", "runtime", "name", "is_captured"),
    [
        (SMALL, {}, "H200", True),
        (SMALL, {}, "H100", True),
        (LARGE, {}, "H200", False),
        (SMALL, {}, "A100", False),
        (SMALL, {}, "cpu", False),
        (SMALL, {"cuda_graphs": False}, "H200", False),
        (LARGE, {"cuda_graphs": True}, "A100", True),
        ({**SMALL, "hidden_dropout": 0.1}, {"recompute_granularity": "selective"}, "H200", False),
    ],
    ids=["small", "another", "large", "not measured", "cpu", "refused", "demanded", "obstacle"],
)
def test_what_is_chosen(make_job: Any, model: Any, runtime: Any, name: str, is_captured: bool) -> None:
    job = make_job(model=model, runtime=runtime)
    assert chooses_graphs(job, "transformer_engine", gpu(name)) == is_captured
    assert settled(job, "transformer_engine", gpu(name)).runtime.cuda_graphs is is_captured


def test_a_calibrated_gpu_is_of_its_generation(make_job: Any) -> None:
    calibrated = replace(gpu("H100"), name="ours")
    assert chooses_graphs(make_job(model=SMALL), "torch", calibrated)


def test_memory_has_to_be_left(make_job: Any) -> None:
    """A job that fits without graphs is not made one that does not."""
    job = make_job(model=SMALL)
    needed = estimate_memory(with_graphs(job, True), VOCAB, "torch").device_bytes
    roomy, tight = (replace(gpu("H100"), memory_bytes=int(part * needed)) for part in (1.2, 1.05))
    assert chooses_graphs(job, "torch", roomy)
    assert not chooses_graphs(job, "torch", tight)


def test_a_host_that_is_faster_than_planned_changes_nothing() -> None:
    known = DeviceEstimates(VOCAB, gpu("H100"))
    assert known.behind(1e-6) == known
    assert known.behind(2e-5).start_seconds == 2e-5


def test_the_optimizer_has_no_use_of_what_a_graph_keeps(make_job: Any) -> None:
    """Gradients in 16 bits are copied to fp32 for the update, beside the activations that stay the graph's."""
    wide = {**SMALL, "hidden_size": 4096}
    job = make_job(model=wide, precision={"dtype": "bf16", "grad_reduce_in_fp32": False})
    plain, captured = (estimate_memory(with_graphs(job, each), VOCAB, "torch").stages[0] for each in (False, True))
    assert plain.moment == "optimizer"
    activations = estimate_memory(make_job(model=wide), VOCAB, "torch").stages[0].parts["activations"]
    assert captured.device_bytes > plain.device_bytes + activations


def test_what_only_gpus_have_is_not_planned_of_the_cpu(make_job: Any) -> None:
    """A job that leaves the device open is the job that names it, where it is planned for the CPU."""
    precision = {"dtype": "bf16"}
    found, named = (make_job(model=SMALL, precision=precision, runtime={"device": each}) for each in ("auto", "cpu"))
    cpu = gpu("cpu")
    first, second = (settled(job, "torch", cpu) for job in (found, named))
    assert estimate_memory(first, VOCAB, "torch") == estimate_memory(second, VOCAB, "torch")
    assert estimate_time(first, VOCAB, "torch", cpu) == estimate_time(second, VOCAB, "torch", cpu)
    assert settled(found, "torch", gpu("H200")).runtime.device == "auto"


@pytest.mark.parametrize(
    ("name", "is_there", "sections", "backend"),
    [
        ("H200", True, {}, "flash"),
        ("H200", False, {}, "auto"),
        ("A100", True, {}, "auto"),
        ("cpu", True, {}, "auto"),
        ("H200", True, {"runtime": {"attention_backend": "fused"}}, "fused"),
        ("H200", True, {"model": {**SMALL, "attention_dropout": 0.1}}, "auto"),
    ],
    ids=["there", "not there", "another kind", "cpu", "refused", "obstacle"],
)
def test_attention_is_planned_as_the_runtime_takes_it(
    make_job: Any,
    libraries: Libraries,
    name: str,
    is_there: bool,
    sections: dict[str, Any],
    backend: str,
) -> None:
    if is_there:
        libraries.distribution("flash-attn-4", "4.0.0b36", "flash_attn")
    job = make_job(**{"model": SMALL, "precision": {"dtype": "bf16"}, **sections})
    found = settled(job, "transformer_engine", gpu(name))
    assert found.runtime.attention_backend == backend
    if backend == "flash":
        taken = (estimate_time(each, VOCAB, "transformer_engine", gpu(name)).parts for each in (found, job))
        flash, own = (parts["attention"] for parts in taken)
        assert flash < 0.9 * own


@pytest.mark.parametrize(
    ("model", "is_captured"),
    [(SMALL, True), ({**SMALL, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 32768}, False)],
    ids=["graphs", "flash"],
)
def test_a_step_is_drawn_as_it_is_forecast(
    make_job: Any, libraries: Libraries, model: dict[str, Any], is_captured: bool
) -> None:
    """With the graphs and the attention that a job leaves open, in as many seconds."""
    libraries.distribution("flash-attn-4", "4.0.0b36", "flash_attn")
    runtime = {"layers": "transformer_engine", "device": "cuda"}
    job = make_job(model=model, precision={"dtype": "bf16"}, runtime=runtime, launch={"gpu": "H200"})
    plan = make_plan(job)
    taken = forecast(plan)
    assert (taken.cuda_graphs, taken.flash_attention) == (is_captured, True)
    between = ("optimizer", "data_parallel")
    passes = taken.time.step_seconds - sum(taken.time.parts[name] for name in between)
    assert planned_timeline(plan, taken).seconds == pytest.approx(passes, abs=1e-3, rel=1e-2)
