"""`orchestrator bench`: a real measurement on the CPU, what it prints and writes, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.faults import QUICK_TORCHRUN, Ranks
from support.programs import run_instead
from support.refused import refused
from support.shipped import SHIPPED
from support.stopping import stopped_once_launched
from support.this_machine import Gpus

from orchestrator.bench import text
from orchestrator.bench.measurement import Measurement, MeasurementRequest, bench_job
from orchestrator.bench.report import report_of
from orchestrator.cli.jobs import this_machine
from orchestrator.cli.main import main
from orchestrator.launch.runs import create_run
from orchestrator.planning.hardware import device_named, device_of
from orchestrator.planning.time import estimate_time
from orchestrator.planning.time.roofline import PARTS, roofline
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved, load_job, load_text

Orchestrator = Callable[..., Any]

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="training needs torch, which the light half runs without"
)

TINY = """\
name: tiny
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, vocab_size: 250}
parallelism: {tensor_model_parallel_size: 2}
batch: {micro_batch_size: 2, global_batch_size: 4}
data: {random_tokens: true}
optimizer: {lr: 1.0e-3}
schedule: {train_iters: 20}
precision: {dtype: fp32}
checkpoint: {save_interval: 1}
runtime: {device: cpu}
tracking: {mlflow: false}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@needs_torch
@pytest.mark.distributed
@pytest.mark.slow(reason="trains with two processes and profiles a step: what is measured is to be real")
def test_a_real_measurement(
    orchestrator: Orchestrator, ranks: Ranks, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ranks.for_commands().items():
        monkeypatch.setenv(name, value)
    words = ("--steps", "4", "--warm-up", "1", "--trace", "step.json", "-o", "page.md", "--json")
    words += ("--set", "throughput.flops=causal")
    finished = orchestrator("bench", tiny.name, *words)
    assert finished.code == 0, finished.err or finished.out
    found = finished.json
    step = found["step"]
    assert (step["steps"], step["warm_up"]) == (4, 1)
    assert 0 < step["fastest"] <= step["seconds"] <= step["slowest"]
    assert step["fastest_rank"] <= step["slowest_rank"]
    assert found["tokens_per_second_per_gpu"] == pytest.approx(4 * 64 / step["seconds"] / 2)
    weights = 2 * (4 * 64 * 64 + 2 * 64 * 256) + 256 * 64  # for which all of attention's scores are 2 * 64 * 64 a layer
    counts = {"": weights + 2 * 64 * 64, "full_": weights + 2 * 2 * 64 * 64}
    for name, each in counts.items():
        assert found[f"{name}flops_per_step"] == 4 * 64 * 6 * each
        assert found[f"{name}tflops_per_gpu"] == pytest.approx(4 * 64 * 6 * each / step["seconds"] / 2 / 1e12)
    assert (found["mfu"], found["peak_flops"], found["peak_dtype"], found["device"]) == (None, None, "fp32", "cpu")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    for rank in found["ranks"]:
        profile = rank["profile"]
        assert sum(profile["parts"].values()) + profile["idle"] == pytest.approx(profile["seconds"], rel=1e-6)
        for part in ("gemm", "attention", "memory_bound", "loss", "optimizer", "communication"):
            assert profile["parts"][part] > 0, part
        assert profile["classified"] == 1.0
        assert len(rank["step_seconds"]) == 4
    rows = {row["part"]: row for row in found["parts"]}
    measured = sum(row["measured_seconds"] or 0.0 for row in rows.values())
    assert measured == pytest.approx(found["profile"]["step_seconds"], rel=1e-6)
    assert rows["gemm"]["predicted_seconds"] > 0
    assert rows["communication"]["roofline_seconds"] == 0.0
    assert found["largest_loss"] in rows
    assert found["setup"]["choices"]["layers"] == "torch"
    assert "torch" in found["setup"]["packages"]
    trace = json.loads((tmp_path / "step.json").read_text())
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
    run = RunDir(Path(found["run"]))
    assert run.name == "tiny-bench"
    assert not run.checkpoints.exists(), "nothing is saved"
    assert {path.name for path in run.bench.iterdir()} == {"request.json", "result.json"}
    page = (tmp_path / "page.md").read_text()
    for words_of_the_page in (
        "tiny on 2 x the CPU",
        "| matrix products |",
        "## Setup",
        "megatron-core",
        "layers: torch",
    ):
        assert words_of_the_page in page
    assert "/" + "tmp/" not in page, "no path of this machine"


RESULT: dict[str, Any] = {
    "device": "NVIDIA H200",
    "layers": "torch",
    "padded_vocab": 131072,
    "tokens_per_step": 16384,
    "flops_per_step": 2e14,
    "formula": "…",
    "peak_flops": 989e12,
    "dtype": "bf16",
    "products": "bf16",
    "setup": {
        "python": "3.12",
        "packages": {"torch": "2.11"},
        "environment": {},
        "choices": {"layers": "torch", "cuda_graphs": False},
    },
}
PROFILE: dict[str, Any] = {
    "seconds": 0.41,
    "parts": {"gemm": 0.22, "attention": 0.05, "memory_bound": 0.09, "loss": 0.02, "optimizer": 0.02, "other": 0.0},
    "idle": 0.01,
    "compute_seconds": 0.4,
    "classified": 0.97,
    "communication": {},
    "largest": [{"name": "void at::native::x|y", "part": "gemm", "seconds": 0.2, "count": 3}],
    "unclassified": [{"name": "void odd", "part": "other", "seconds": 0.01, "count": 3}],
}


def measurement(tmp_path: Path, **changes: Any) -> Measurement:
    """Of the 1.7B on one H200, as its rank could have found it."""
    loaded = load_job([SHIPPED["gpt-1.7b"]], ["batch.global_batch_size=4"])
    rank = {"rank": 0, "pp": 0, "tp": 0, "dp": 0, "step_seconds": [0.40, 0.39, 0.42], "profile": PROFILE}
    rank |= {"peak_bytes": 70 * 2**30, "used_bytes": 75 * 2**30}
    request = MeasurementRequest(warm_up=5, steps=3)
    job = bench_job(loaded.job, request, 131072)
    return Measurement(RunDir(tmp_path), job, request, {**RESULT, "ranks": [rank], **changes})


def test_attention_is_held_against_the_one_that_computed_it(tmp_path: Path) -> None:
    own, flash = (
        report_of(measurement(tmp_path, setup={**RESULT["setup"], "choices": {"flash_attention": each}}))
        for each in (False, True)
    )
    planned = [next(row.predicted for row in each.rows if row.part == "attention") or 0.0 for each in (flash, own)]
    assert 0 < planned[0] < 0.9 * planned[1]


def test_buffers_that_were_not_had_are_no_part_of_the_plan(tmp_path: Path) -> None:
    of_two = measurement(tmp_path)
    degrees = of_two.job.parallelism.model_copy(update={"tensor_model_parallel_size": 2, "sequence_parallel": True})
    launch = of_two.job.launch.model_copy(update={"gpus_per_node": 2})
    of_two = replace(of_two, job=of_two.job.model_copy(update={"parallelism": degrees, "launch": launch}))
    had, had_none = (
        report_of(replace(of_two, result={**of_two.result, "layers": "transformer_engine", "setup": {"choices": each}}))
        for each in ({"tp_comm_overlap": True}, {"tp_comm_overlap": False})
    )
    assert had.memory is not None
    assert had_none.memory is not None
    assert had_none.memory.device_bytes < had.memory.device_bytes


def test_figures_beside_the_plan_and_the_roofline(tmp_path: Path) -> None:
    report = report_of(measurement(tmp_path))
    assert report.step_seconds == 0.40
    assert report.mfu == pytest.approx(2e14 / 0.40 / 989e12)
    lines = text.headline(report)
    assert "step: 400.0 ms, median of 3 after 5 (390.0 to 420.0)" in lines[0]
    assert "MFU 50.6% of the bf16 peak, 989 TFLOP/s dense" in lines[1]
    rows = {row.part: row for row in report.rows}
    assert sum(row.measured or 0.0 for row in report.rows) == pytest.approx(PROFILE["seconds"])
    for part in PARTS:
        predicted, least = rows[part].predicted, rows[part].roofline
        assert predicted is not None
        assert least is not None
        assert 0 < least <= predicted, part
    assert report.largest_loss is not None
    assert report.largest_loss.part == "memory_bound"
    assert "3.0% of the kernels' time belongs to unknown kernels: odd" in text.after_the_parts(report)
    [stage] = report.stage_memory()
    assert stage["peak_bytes"] == 70 * 2**30
    assert stage["predicted_peak_bytes"]
    page = text.page(report, dump_resolved(report.measured.job), "orchestrator bench job.yaml")
    assert "| x\\|y | gemm | 3 | 200.0 |" in page
    assert "- batch: micro_batch_size 4, global_batch_size 4" in page


def test_megatrons_count_stands_beside_ours_where_it_is_asked_for(tmp_path: Path) -> None:
    report = report_of(measurement(tmp_path, full_flops_per_step=2.5e14))
    lines = "\n".join(text.headline(report))
    assert all(figure in lines for figure in ("500 TFLOP/s", "50.6%", "625 TFLOP/s", "63.2%"))
    written = report.to_json()
    assert (written["tflops_per_gpu"], written["full_tflops_per_gpu"]) == pytest.approx((500, 625))
    assert (written["mfu"], written["full_mfu"]) == pytest.approx((500 / 989, 625 / 989))
    plain = report_of(measurement(tmp_path))
    assert (plain.full_tflops_per_gpu, plain.full_mfu) == (None, None)
    assert len(text.headline(plain)) == len(text.headline(report)) - 1


def test_fp8_is_held_against_the_bf16_peak_with_these_words(tmp_path: Path) -> None:
    lines = text.headline(report_of(measurement(tmp_path, products="fp8")))
    assert "50.6% of the bf16 peak, 989 TFLOP/s dense, with matrix products in FP8" in lines[1]
    experts = measurement(tmp_path, products="fp8", expert_products="bf16")
    assert "in FP8, but experts' in bf16" in text.headline(report_of(experts))[1]
    assert "MFU" not in lines[1]


def test_a_trace_that_failed_takes_no_profile_away(tmp_path: Path) -> None:
    whole = report_of(measurement(tmp_path))
    report = report_of(replace(measurement(tmp_path), failure="it ran out of memory"))
    assert text.missing(report) == "the trace"
    assert text.parts_table(report) == text.parts_table(whole)
    page = text.page(report, dump_resolved(report.measured.job), "orchestrator bench job.yaml")
    assert "The trace was not measured" in page
    assert "## The step by part" in page


def test_an_unknown_gpu_has_no_plan(tmp_path: Path) -> None:
    report = report_of(measurement(tmp_path, device="Colossus Mark 1", peak_flops=None))
    assert all(row.predicted is None and row.roofline is None for row in report.rows)
    assert report.to_json()["largest_loss"] is None
    assert "no plan and no roofline: Colossus Mark 1 is not known" in text.after_the_parts(report)[-1]
    assert "MFU" not in text.headline(report)[1]


ON_RANDOM_TOKENS = ("data.random_tokens=true", "data.blend=null", "data.tokenizer=null", "model.vocab_size=50257")


def test_the_roofline_of_the_1_7b_is_near_62_percent() -> None:
    """By hand: 145 TFLOP of products, causal attention, 40 ms of memory traffic and Adam: about 300 ms, 62 %."""
    job = load_job([SHIPPED["gpt-1.7b"]], ["batch.global_batch_size=4"]).job
    device = device_named("H200")
    least, plan = roofline(job, 131072, device), estimate_time(job, 131072, "torch", device)
    assert all(0 < least[part] <= plan.parts[part] for part in PARTS)
    mfu = plan.model_flops / sum(least.values()) / device.peak_flops["bf16"]
    assert 0.58 < mfu < 0.72


@pytest.mark.parametrize(
    ("name", "part", "longer"), [("attention_dropout", "attention", 1.2), ("hidden_dropout", "memory_bound", 1.1)]
)
def test_the_roofline_draws_nothing(name: str, part: str, longer: float) -> None:
    """`longer`: how much the plan says that drawing takes; of elements it is little since one kernel drops and adds."""
    others = {"attention_dropout": 0, "hidden_dropout": 0}
    dropping, keeping = (
        load_job(
            [SHIPPED["gpt-345m"]],
            [*ON_RANDOM_TOKENS, *(f"model.{key}={value}" for key, value in {**others, name: dropped}.items())],
        ).job
        for dropped in (0.1, 0)
    )
    device = device_named("H200")
    of_mask = roofline(dropping, 50304, device)[part] / roofline(keeping, 50304, device)[part] - 1
    assert of_mask == 0 if name == "attention_dropout" else 0 < of_mask < 0.15
    planned = [estimate_time(job, 50304, "transformer_engine", device).parts[part] for job in (dropping, keeping)]
    assert planned[0] > longer * planned[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "2"], "--steps"),
        (["-o", "no/such/page.md"], "no/such/page.md cannot be written: there is no folder no/such"),
        (["--trace", "."], ". is a folder; name the file to write"),
        (["--set", "model.hidden_size=63"], "model.hidden_size"),
        (["--set", "launch.nodes=2", "--set", "launch.gpus_per_node=1"], "bench runs only on this machine"),
    ],
)
def test_wrong_words(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Any,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", str(tiny), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_too_few_gpus(
    tiny: Path, tmp_path: Path, gpus: Gpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write_text(TINY.replace("runtime: {device: cpu}", "launch: {gpu: H200}"))
    gpus.are(["NVIDIA H200"])
    assert main(["bench", str(tiny)]) == 2
    error = capsys.readouterr().err
    assert "bench needs 2 GPUs, and this machine has 1: `orchestrator tune --gpus 1` finds a layout for it" in error
    gpus.are([])
    assert main(["bench", str(tiny)]) == 2
    error = capsys.readouterr().err
    assert "this machine has none: add --set runtime.device=cpu if a CPU can train it" in error


def test_beside_a_run_nothing_is_measured(
    tiny: Path, tmp_path: Path, gpus: Gpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write_text(TINY.replace("runtime: {device: cpu}", "launch: {gpu: H200}"))
    gpus.are(["NVIDIA H200"] * 8)
    run = create_run(load_job([tiny]).job, TINY, tmp_path / "runs")
    lease = Lease.acquire(run, launch_id="one")
    assert main(["bench", str(tiny)]) == 2
    lease.release()
    assert f"bench would disturb run {run.run_id}" in capsys.readouterr().err


def test_a_run_whose_lease_cannot_be_read_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As another person's may be: a lease that is a folder is refused to root as well."""
    job = load_text(TINY.replace("runtime: {device: cpu}", "launch: {gpu: H200}"), "job").job
    runs = [create_run(job, TINY, tmp_path) for _ in range(3)]
    (runs[0].lease / "000001.json").mkdir(parents=True)
    this_machine.check_alone(choice := device_of(job, None), tmp_path, "bench")
    lease = f"{runs[0].lease}/000001.json"
    said = f"whether run {runs[0].run_id} trains on this machine ({lease}: Is a directory): if so"
    assert said in capsys.readouterr().err
    (runs[1].lease / "000001.json").mkdir(parents=True)
    held = Lease.acquire(runs[2], launch_id="one")
    with refused("machine_in_use", runs[2].run_id):
        this_machine.check_alone(choice, tmp_path, "bench")
    held.release()
    this_machine.check_alone(choice, tmp_path, "bench")
    assert f"whether one of 2 runs (run {runs[0].run_id}, …) trains" in capsys.readouterr().err


def test_a_job_that_fails(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1] / 'launch'}:{QUICK_TORCHRUN}")
    monkeypatch.setenv("FAKE_END", "memory@2")
    run_instead(monkeypatch, "fake_runtime", "bench")
    assert main(["bench", str(tiny), "--steps", "3"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: nothing was measured: ")
    assert "CUDA out of memory" in error
    [logs] = (tmp_path / "runs" / "tiny-bench").glob("*/logs")
    assert f"its run: {logs.parent}" in error


def test_a_person_who_asks_it_to_stop(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stop file is what Ctrl-C writes; the program sees it before its first step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1] / 'launch'}:{QUICK_TORCHRUN}")
    monkeypatch.setenv("FAKE_HOLD", "0:nothing-that-comes")
    run_instead(monkeypatch, "fake_runtime", "bench")
    with stopped_once_launched(tmp_path):
        assert main(["bench", str(tiny), "--steps", "3"]) == 130
    assert capsys.readouterr().err == "stopped; nothing was measured\n"


def test_a_job_that_cannot_be_started(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", str(tiny), "--set", "launch.python=no-such-python"]) == 2
    assert "no-such-python is not a program on this machine" in capsys.readouterr().err
    assert not list((tmp_path / "runs" / "tiny-bench").glob("[0-9a-f]*")), "nothing is left"
