"""`orchestrator calibrate`: measured on this machine's CPU for real, and corrected by what runs say."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event, lines_of
from support.faults import Ranks
from support.programs import run_instead
from support.training import make_run, tiny_job

from orchestrator.cli.main import main
from orchestrator.kernel_selection.attention import with_attention
from orchestrator.planning.hardware import device_named, shipped
from orchestrator.planning.time import estimate_time
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.loading import load_resolved

H200 = "NVIDIA H200"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "orchestrator" / "gpus"


def test_the_cpu_is_measured_and_planned_with(orchestrator: Any, home: Path) -> None:
    finished = orchestrator("calibrate", "--cpu", "--seconds", "0.01")
    assert (finished.code, finished.err) == (0, "")
    assert "matrix product 512 x 512 x 512, fp32" in finished.out
    assert "all-gather over 2 processes" in finished.out
    assert f"wrote {home / 'cpu.yaml'}: jobs planned for cpu use it from now on." in finished.out
    text = (home / "cpu.yaml").read_text()
    assert "power_limit" not in text
    assert 'measured_on: "' in text
    device, sheet = device_named("cpu"), shipped("cpu")
    assert sheet is not None
    changed = {name for name, share in vars(device.efficiency).items() if share != getattr(sheet.efficiency, name)}
    assert {"gemm", "attention_forward", "attention_backward", "memory", "launch", "link", "link_latency"} <= changed
    # Any core of the last fifteen years, under any load, does more than 0.1 and less than 1,000 GFLOP/s.
    assert 1e8 < device.peak_flops["fp32"] * device.efficiency.gemm < 1e12


def measured_on_an_h200(looped: float) -> dict[str, Any]:
    """What the program writes on one, the largest product at `looped` FLOP/s where it is looped."""
    sizes = {"m": 8192, "n": 8192, "k": 8192}
    flops = 2.0 * 8192**3
    return {
        **{"device": H200, "count": 1, "memory_bytes": 150 * 10**9, "dtype": "bf16", "torch": "2.11"},
        "gemms": [{**sizes, "seconds": flops / 785e12}],
        "sustained_gemm": {**sizes, "seconds": flops / looped, "loop_seconds": 2.0},
        "attention": {
            **{"sequences": 4, "heads": 16, "length": 4096, "head_dim": 128},
            **{"forward_seconds": 5e-4, "backward_seconds": 1.6e-3},
        },
        **{"stream": {"bytes": 3 << 29, "seconds": 4e-4}, "launch_seconds": 3e-6, "links": None},
    }


def measures(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> None:
    """This machine is one where this is measured."""
    monkeypatch.setattr("orchestrator.cli.jobs.calibrate.measure_machine", lambda seconds, *, cpu: found)


def test_products_at_the_power_limit_are_written_and_printed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured_on_an_h200(680e12)
    measures(monkeypatch, found)
    assert main(["calibrate"]) == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if "limit" in line]
    assert re.split(" {2,}", row) == ["the largest for 2 s, at the power limit", "680 TFLOP/s", "989 TFLOP/s", "69%"]
    assert device_named("H200").efficiency.gemm_at_power_limit == pytest.approx(0.708, abs=5e-4)

    found.update(measured_on_an_h200(780e12))
    assert main(["calibrate", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured"]["sustained_gemm"]["loop_seconds"] == 2.0
    assert document["profile"]["efficiency"]["gemm_at_power_limit"] == 1.0
    assert device_named("H200").efficiency.gemm_at_power_limit == 1.0, "not the shipped one: this GPU is at no limit"


def test_what_no_gpu_of_its_kind_reaches_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured_on_an_h200(680e12)
    found["gemms"][0]["seconds"] = 1e-9
    measures(monkeypatch, found)
    assert main(["calibrate"]) == 2
    assert "the measurements do not fit H200: its efficiency.gemm would be" in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_what_was_measured_is_shown_though_the_profile_cannot_be_written(
    words: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured_on_an_h200(680e12)
    measures(monkeypatch, found)
    assert main(["calibrate", "-o", "/proc/mine.yaml", *words]) == 2
    said = capsys.readouterr()
    assert "/proc/mine.yaml cannot be written" in said.err
    if words:
        document = json.loads(said.out)
        assert (document["path"], document["measured"]) == (None, found)
        assert "/proc/mine.yaml cannot be written" in document["failure"]
    else:
        assert "680 TFLOP/s" in said.out
        assert "wrote" not in said.out


def test_devices_that_do_not_talk_are_measured_each_by_itself(
    ranks: Ranks, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unlinked_program.py").write_text(
        "import sys\n"
        "from orchestrator.runtime.calibration import __main__ as program\n"
        "def refusing(*arguments, **options):\n"
        "    raise RuntimeError('-- Process 1 terminated:\\nNCCL error: unhandled system error')\n"
        "program.measure_links = refusing\n"
        "sys.exit(program.main())\n"
    )
    for name, value in ranks.for_commands(tmp_path).items():
        monkeypatch.setenv(name, value)
    run_instead(monkeypatch, "unlinked_program", "calibration")
    assert main(["calibrate", "--cpu", "--seconds", "0.01", "--json"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["path"] == str(home / "cpu.yaml")
    assert {"gemm", "memory"} <= document["profile"]["efficiency"].keys()
    assert "NCCL error: unhandled system error" in document["failure"]
    assert "NCCL error: unhandled system error" in said.err


def run_on(tmp_path: Path, name: str, *, factor: float, device: str = H200, **sections: Any) -> RunDir:
    """A run whose every step takes `factor` times what the shipped device should take, but the first two."""
    job = tiny_job(
        name,
        **{
            "model": {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 4096},
            "precision": {"dtype": "bf16"},
            **sections,
        },
    )
    run = make_run(tmp_path / "runs", job)
    append_event(run, "created")
    append_event(run, "started", iteration=0, device=device, layers="torch")
    base = shipped("H200")
    assert base is not None
    seconds = factor * estimate_time(job, 256, "torch", base).step_seconds
    for iteration in range(1, 9):
        taken = 100.0 if iteration <= 2 else seconds * (1.01 if iteration % 2 else 0.99)
        values = {"throughput/step_seconds": taken} if iteration != 5 else {"train/loss": 1.0}
        append_line(
            run.metrics_file,
            {"time": time.time(), "iteration": iteration, "samples": 8 * iteration, "tokens": 0, "values": values},
        )
    return run


def test_runs_correct_a_gpu_that_is_not_here(orchestrator: Any, home: Path, tmp_path: Path) -> None:
    run_on(tmp_path, "one", factor=1.2)
    run_on(tmp_path, "two", factor=1.2, batch={"micro_batch_size": 4})
    document = orchestrator("calibrate", "--from", "runs/one/run", "--from", "runs/two/run", "--json").json
    assert (document["name"], document["path"]) == ("H200", str(home / "H200.yaml"))
    for record in document["runs"]:
        assert record["before"] == pytest.approx(record["measured_seconds"] / 1.2, rel=0.02)
        assert record["after"] == pytest.approx(record["measured_seconds"], rel=0.02)
    mended, sheet = device_named(H200), shipped("H200")
    assert sheet is not None
    assert mended.efficiency.gemm < sheet.efficiency.gemm
    assert mended.efficiency.network == sheet.efficiency.network, "nothing was said of it"
    again = orchestrator("calibrate", "--from", "runs/one/run")
    assert "one/run" in again.out
    assert "PREDICTED BEFORE" in again.out
    assert (home / "H200.yaml").read_text().count("steps of run one/run") == 1


def test_steps_before_a_run_was_captured_are_no_measure_of_it(orchestrator: Any, home: Path, tmp_path: Path) -> None:
    """Nor those that a resume did not reach again."""
    run = run_on(tmp_path, "one", factor=1.2)
    append_event(run, "started", iteration=4, device=H200, layers="torch", cuda_graphs=True)
    for iteration in range(5, 8):
        values = {"throughput/step_seconds": 0.5}
        append_line(
            run.metrics_file, {"time": time.time(), "iteration": iteration, "samples": 0, "tokens": 0, "values": values}
        )
    [record] = orchestrator("calibrate", "--from", "runs/one/run", "--json").json["runs"]
    assert record["measured_seconds"] == 0.5


def test_a_run_with_flash_attention_says_nothing_of_the_layers_own(
    orchestrator: Any, home: Path, tmp_path: Path
) -> None:
    """What it took is held against a plan with it, which the spec does not name."""
    run = run_on(tmp_path, "one", factor=1.0)
    append_event(run, "started", iteration=4, device=H200, layers="torch", attention_backend="flash")
    for iteration in range(9, 14):
        append_line(
            run.metrics_file,
            {
                "time": time.time(),
                "iteration": iteration,
                "samples": 0,
                "tokens": 0,
                "values": {"throughput/step_seconds": 0.5},
            },
        )
    [record] = orchestrator("calibrate", "--from", "runs/one/run", "--json").json["runs"]
    job, base = load_resolved(run.resolved()), shipped("H200")
    assert base is not None
    own, flash = (
        estimate_time(with_attention(job, each), 256, "torch", base).step_seconds for each in ("fused", "flash")
    )
    assert record["measured_seconds"] == 0.5
    assert record["before"] == pytest.approx(flash) != pytest.approx(own)


def test_a_mean_with_a_step_in_it_that_does_not_count_is_left_out(
    orchestrator: Any, home: Path, tmp_path: Path
) -> None:
    """With `tracking.log_interval` a record stands for several steps: of a warm-up, or of smaller batches."""
    batch = {"global_batch_size": 8, "micro_batch_size": 2, "rampup_batch_size": [4, 4, 20]}  # full from step 6 on
    run = run_on(tmp_path, "one", factor=1.0, batch=batch, tracking={"log_interval": 4})
    append_event(run, "started", iteration=12, device=H200, layers="torch")
    first, second = (event["time"] for event in lines_of(run) if event["event"] == "started")
    means = [(first, 4, 100.0), (first, 8, 50.0), (first, 12, 0.5), (second, 16, 70.0), (second, 20, 0.5)]
    run.metrics_file.unlink()
    for when, iteration, seconds in means:
        values = {"throughput/step_seconds": seconds}
        append_line(
            run.metrics_file, {"time": when, "iteration": iteration, "samples": 0, "tokens": 0, "values": values}
        )
    [record] = orchestrator("calibrate", "--from", "runs/one/run", "--json").json["runs"]
    assert record["measured_seconds"] == 0.5


def test_what_was_written_by_hand_stays(orchestrator: Any, home: Path, tmp_path: Path) -> None:
    home.mkdir(parents=True)
    (home / "mine.yaml").write_text("base: H200\nnetwork_bandwidth: 2.5e10\nefficiency: {network: 0.7}\n")
    run_on(tmp_path, "one", factor=0.9)
    assert orchestrator("calibrate", "--from", "runs/one/run", "--gpu-name", "mine").code == 0
    device = device_named("mine")
    assert (device.network_bandwidth, device.efficiency.network) == (2.5e10, 0.7)
    assert orchestrator("calibrate", "--from", "runs/one/run", "-o", "gpus/mine.yaml").code == 0
    assert device_named("mine").network_bandwidth == 5e10, "the project's goes before one's own"
    again = orchestrator("calibrate", "--from", "runs/one/run", "--gpu-name", "mine")
    assert "wrote gpus/mine.yaml" in again.out, "the one that is in force"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "nothing"), "there is no run nothing"),
        (
            ("--from", "runs/one/run", "--from", "runs/other/run"),
            "the runs are of different GPUs, NVIDIA A100-SXM4-80GB and NVIDIA H200",
        ),
        (("--from", "runs/fresh/run"), "was never started"),
        (("--from", "runs/short/run"), "has no step time at its full batch size after its first 2 steps"),
        (("--from", "runs/eight/run"), "run eight/run computed its products in FP8, but efficiencies are for bf16"),
        (("--from", "runs/strange/run"), "no datasheet of NVIDIA Z1 is known: name the closest GPU with --base"),
        (("--base", "H1O0"), "no datasheet of H1O0 is known"),
        (("--cpu", "--base", "H100"), "the CPU is measured, but --base H100 is a GPU: leave out --base"),
        (("--from", "runs/slow/run", "--base", "H100"), "the CPU is measured, but --base H100 is a GPU"),
        (("--from", "runs/one/run", "--gpu-name", "taken"), "is the profile of another GPU, A100"),
        (
            ("--from", "runs/one/run", "--gpu-name", "h100"),
            "this is of H200, and every job planned for H100 would use it",
        ),
        (("--from", "runs/one/run", "--base", "cpu"), "what is measured is NVIDIA H200, but --base is the CPU"),
        (("--from", "runs/one/run", "--cpu"), "but --from measures nothing"),
        (("--gpu-name", "a/b"), "'a/b' is not a valid profile name"),
        (("-o", "h200.json"), "the name of a profile file ends in .yaml"),
        (
            ("-o", "gpus/a.yaml", "--gpu-name", "b"),
            "a profile has the name of its file: b would have to be gpus/b.yaml",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    home.mkdir(parents=True)
    (home / "taken.yaml").write_text("base: A100\n")
    if "--from" in arguments:
        run_on(tmp_path, "one", factor=1.0)
        run_on(tmp_path, "other", factor=1.0, device="NVIDIA A100-SXM4-80GB")
        run_on(tmp_path, "strange", factor=1.0, device="NVIDIA Z1")
        run_on(tmp_path, "slow", factor=1.0, device="cpu")
        run_on(tmp_path, "eight", factor=1.0, precision={"dtype": "bf16", "fp8": {"recipe": "delayed"}})
        append_event(make_run(tmp_path / "runs", tiny_job("fresh")), "created")
        short = make_run(tmp_path / "runs", tiny_job("short"))
        append_event(short, "started", iteration=0, device=H200, layers="torch")
    assert main(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (home / "H200.yaml").exists()
