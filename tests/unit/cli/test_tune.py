"""`orchestrator tune` as a person runs it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refusals import fail_at
from support.shipped import SHIPPED
from support.terminal import on_terminal
from support.this_machine import Gpus

from orchestrator.cli.jobs import tune
from orchestrator.cli.main import main
from orchestrator.launch.runs import create_run
from orchestrator.planning.hardware.local_gpus import gpus_counted
from orchestrator.run_directory.lease import Lease
from orchestrator.spec.loading import load_job

Orchestrator = Callable[..., Any]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="training needs torch")

LARGE = """\
name: large
model: {preset: gpt-70b}
parallelism: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 2, sequence_parallel: true}
batch: {micro_batch_size: 1, global_batch_size: 1024}
data: {random_tokens: true}
optimizer: {lr: 1.0e-4}
schedule: {train_iters: 100}
launch: {gpu: H100}
"""

SMALL = """\
name: small
model: {preset: gpt-1.7b, num_layers: 8}
parallelism: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, sequence_parallel: true}
batch: {micro_batch_size: 1, global_batch_size: 32}
data: {random_tokens: true}
optimizer: {lr: 1.0e-4}
schedule: {train_iters: 100}
launch: {gpu: H100}
"""

ONE = ("--keep", "micro_batch_size")
"""For what is about memory, where the leanest layouts have single sequences, or about degrees."""
FEW = ("--keep", "tensor_model_parallel_size", "--keep", "pipeline_model_parallel_size", *ONE)
"""For what is the same however many layouts there are."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.yaml"
    path.write_text(LARGE)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_the_tables_and_the_overlay(orchestrator: Orchestrator, large: Path, tmp_path: Path) -> None:
    said = orchestrator("tune", "large.yaml", "--gpus", "32", "--top", "3", *ONE)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].startswith("large on 32 x H100 of 79.")
    assert "on 4 machines (launch.gpu)" in lines[0]
    assert "global batch 1024" in lines[0]
    assert [line.split(".")[0] for line in lines[4:7]] == ["1", "2", "3"]
    assert "Speed against memory" in said.out
    assert "this job" in said.out
    for reason in ("not legal", "does not fit", "recomputes more than it must", "tensor parallelism across machines"):
        assert reason in said.out
    assert lines[-1] == "wrote large.tuned.yaml; use it: orchestrator run large.yaml large.tuned.yaml"
    overlay = (tmp_path / "large.tuned.yaml").read_text()
    assert overlay.startswith("# Written by `orchestrator tune` ")
    assert "s per step predicted" in overlay
    assert "# Use it: orchestrator run large.yaml large.tuned.yaml" in overlay


def test_the_overlay_on_standard_output(orchestrator: Orchestrator, small: Path, tmp_path: Path) -> None:
    said = orchestrator("tune", "small.yaml", "--gpus", "8", "--gpu", "H200", "-o", "-", *FEW)
    assert said.code == 0, said.err
    assert said.out.startswith("# Written by `orchestrator tune` ")
    assert "(--gpu)" in said.out.splitlines()[1]
    assert "The fastest of" in said.err
    assert said.err.splitlines()[-1] == "use it: orchestrator run small.yaml OVERLAY.yaml"
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
    (tmp_path / "OVERLAY.yaml").write_text(said.out)
    assert orchestrator("validate", "small.yaml", "OVERLAY.yaml").code == 0
    refused = orchestrator("tune", "small.yaml", "-o", "-", "--json")
    assert (refused.code, refused.json["message"].partition(" would ")[0]) == (2, "-o - and --json")


def test_the_overlay_makes_a_job_that_is_right_and_trains_the_same(
    orchestrator: Orchestrator, small: Path, tmp_path: Path
) -> None:
    found = orchestrator("tune", small, "--gpus", "16", "-o", "fast.yaml", "--json").json
    job = load_job([small, tmp_path / "fast.yaml"]).job
    before = load_job([small]).job
    assert (job.world_size, job.launch.nodes, job.global_batch_size) == (16, 2, 32)
    assert (job.model, job.data, job.optimizer, job.schedule) == (
        before.model,
        before.data,
        before.optimizer,
        before.schedule,
    )
    best = found["best"]
    assert job.parallelism.tensor_model_parallel_size == best["layout"]["parallelism"]["tensor_model_parallel_size"]
    assert job.batch.micro_batch_size == best["layout"]["batch"]["micro_batch_size"]
    assert best["fit"] == "fits"
    assert best["step_seconds"] <= found["own"]["step_seconds"]
    assert found["front"][0]["layout"] == best["layout"]
    sizes = [each["device_bytes"] for each in found["front"]]
    assert sizes == sorted(sizes, reverse=True)
    planned = orchestrator("validate", small, "fast.yaml", "--json")
    assert planned.json["ok"]


def test_what_is_kept_or_set_stays(orchestrator: Orchestrator, small: Path) -> None:
    words = [*ONE, "--keep", "pipeline_model_parallel_size", "--set", "parallelism.tensor_model_parallel_size=4"]
    said = orchestrator("tune", small, "--gpus", "16", *words, "--json")
    for each in said.json["top"]:
        degrees = each["layout"]["parallelism"]
        assert (degrees["tensor_model_parallel_size"], degrees["pipeline_model_parallel_size"]) == (4, 2)
    said = orchestrator("tune", small, "--gpus", "16", *words, "--set", "schedule.train_iters=7")
    assert said.out.splitlines()[-1].endswith("small.tuned.yaml --set schedule.train_iters=7"), "what the overlay lacks"


def test_nothing_fits(orchestrator: Orchestrator, large: Path, tmp_path: Path) -> None:
    said = orchestrator("tune", large, "--gpus", "8", *ONE)
    assert said.code == 2
    first, second = said.err.splitlines()
    assert first.startswith(
        "error: large does not fit 8 H100s in any layout: the leanest, TP 8, PP 1, micro 1, recompute"
    )
    assert "GiB on a GPU that has 79." in first
    count = int(second.split()[0])
    assert second.split("--gpus ")[1] == str(count)
    assert not (tmp_path / "large.tuned.yaml").exists()
    assert "nearly all" not in orchestrator("tune", large, "--gpus", str(count), *ONE).out
    tight = orchestrator("tune", large, "--gpus", str(count - 8), *ONE)
    assert "the best layout needs nearly all of the GPU's memory" in tight.out
    assert f"note: on {count} GPUs a layout fits with room to spare: --gpus {count}\n" in tight.out


def test_a_hundredth_of_the_memory_is_left_where_nothing_is_measured(
    orchestrator: Orchestrator, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that has what the leanest layout needs and no more, a measurement would have to tell."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpus").mkdir()
    gpu = tmp_path / "gpus" / "H100.yaml"
    leanest = re.search(r"needs ([\d.]+) GiB on a GPU", orchestrator("tune", large, "--gpus", "8", *ONE).err)
    assert leanest is not None
    needed = float(leanest[1]) * 2**30
    gpu.write_text(f"base: H100\nmemory_bytes: {int(needed / 0.995)}\n")
    said = orchestrator("tune", large, "--gpus", "8", *ONE)
    assert said.code == 2
    assert ", and more than 99% is too close to the limit" in said.err
    assert re.search(r"\d+ GPUs are enough: --gpus \d+; --measure shows whether it fits$", said.err.strip())
    gpu.write_text(f"base: H100\nmemory_bytes: {int(needed / 0.985)}\n")
    found = orchestrator("tune", large, "--gpus", "8", *ONE, "--json").json
    assert 0.98 < found["best"]["device_bytes"] / found["memory_bytes"] <= 0.99
    assert found["enough_gpus"] > 8


@pytest.mark.parametrize(("gpu", "spans"), [("GB200", False), ("GH200", True)])
def test_machines_that_links_join_are_one(orchestrator: Orchestrator, tmp_path: Path, gpu: str, spans: bool) -> None:
    """Both have 4 GPUs to a machine; NVLink joins a GB200's machines."""
    asked = [SHIPPED["gpt-7.1b"], "--gpu", gpu, "--set", "model.num_layers=6", "--json"]
    sizes = ("launch.nodes=2", "launch.gpus_per_node=4", "parallelism.tensor_model_parallel_size=8")
    plan = orchestrator("plan", *asked, *(word for each in sizes for word in ("--set", each))).json
    codes = {each["code"] for each in plan["verdict"]["warnings"]}
    assert ("tensor_parallel_across_nodes" in codes) == spans
    found = orchestrator("tune", *asked, *ONE, "--gpus", "8", "-o", tmp_path / "tuned.yaml").json
    assert ("tensor parallelism across machines" in found["lost"]) == spans


def test_what_nearly_all_of_the_memory_would_save_is_said(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """7.1B on one H200 recomputes 23 of 30 layers to fit for sure."""
    asked = ["tune", SHIPPED["gpt-7.1b"], "--gpus", "1", "--gpu", "H200"]
    asked += ["--set", "runtime.layers=transformer_engine", "-o", tmp_path / "tuned.yaml"]
    said = orchestrator(*asked).out
    note = re.search(
        r"^note: TP 1, PP 1, micro 1, recompute full, block (\d+) would take ([\d.]+) s, (\d+)% less, "
        r"with [\d.]+ GiB of 139.8 GiB: --measure shows whether it fits$",
        said,
        re.MULTILINE,
    )
    assert note is not None, said
    found = orchestrator(*asked, "--json").json
    best, tight = found["best"], found["tight"]
    assert (best["fit"], tight["fit"]) == ("fits", "tight")
    assert tight["device_bytes"] <= 0.99 * found["memory_bytes"]
    assert round(100 * (1 - tight["step_seconds"] / best["step_seconds"])) == int(note[3]) >= 3
    layers = [each["layout"]["runtime"]["recompute_num_layers"] for each in (tight, best)]
    assert layers[0] == int(note[1]) < layers[1]
    roomy = orchestrator(*asked, "--gpus", "4", *FEW)
    assert "would take" not in roomy.out
    assert orchestrator(*asked, "--gpus", "4", *FEW, "--json").json["tight"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "12"], "machines have 8 GPUs, so use at most 8 or a multiple of it: 8 or 16"),
        (["--gpus", "1000"], "1024 / 1000 = 1.024 is not whole"),
        (["--gpu", "H1000"], "unknown GPU 'H1000'"),
        (["--keep", "num_layers"], "--keep num_layers: the tuner"),
        (["--cluster", "nowhere"], "nowhere"),
        (["-o", "no/such/folder.yaml"], "there is no folder no/such"),
        (["--measure"], "--measure runs only on this machine, but the job has 2: add --gpus"),
    ],
)
def test_wrong_words(orchestrator: Orchestrator, large: Path, words: list[str], said: str) -> None:
    finished = orchestrator("tune", large, "--set", "launch.nodes=2", *words)
    assert finished.code == 2
    assert said in finished.err


def test_what_a_slow_host_would_make_of_the_best_is_said_until_one_is_measured(
    orchestrator: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single sequences on two stages: Transformer Engine's kernels are started as fast as they are computed."""
    monkeypatch.chdir(tmp_path)
    asked = ["tune", SHIPPED["gpt-1.7b"], "--gpu", "H100", "-o", tmp_path / "tuned.yaml"]
    two_stages = ("launch.gpus_per_node=2", "parallelism.pipeline_model_parallel_size=2")
    asked += [word for each in (*two_stages, "runtime.layers=transformer_engine") for word in ("--set", each)]
    single = ("--set", "batch.micro_batch_size=1")
    found = re.search(
        r"on a host half as fast as planned, which is common, a step of the best layout takes ([\d.]+) s, "
        r"and of layout \d+ ([\d.]+) s;",
        orchestrator(*asked, *single).out,
    )
    assert found is not None
    best = orchestrator(*asked, *single, "--json").json["best"]["step_seconds"]
    assert best < float(found[2]) < float(found[1])
    assert "half as fast" not in orchestrator(*asked, "--set", "batch.micro_batch_size=4").out

    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "H100.yaml").write_text("base: H100\nefficiency: {launch: 1.2e-5}\n")
    measured = orchestrator(*asked, *single)
    assert "half as fast" not in measured.out
    best = orchestrator(*asked, *single, "--json").json["best"]["step_seconds"]
    assert best <= float(found[2]) + 0.01


@pytest.mark.skipif(gpus_counted() is None or (gpus_counted() or 0) >= 8, reason="this machine has the GPUs")
def test_what_this_machine_has_not_is_not_measured(orchestrator: Orchestrator, large: Path) -> None:
    said = orchestrator("tune", large, "--gpus", "8", "--measure")
    assert said.code == 2
    assert "--measure needs 8 GPUs, and this machine has" in said.err


def test_a_run_that_trains_here_is_left_alone(
    large: Path, tmp_path: Path, gpus: Gpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gpus.are(["NVIDIA H200"] * 64)
    monkeypatch.setattr(tune, "check_installed", lambda job: None)
    fail_at(monkeypatch, "orchestrator.cli.jobs.tune.Trials", AssertionError("nothing is tried"))
    run = create_run(load_job([large]).job, LARGE, tmp_path / "runs")
    lease = Lease.acquire(run, launch_id="one")
    assert main(["tune", str(large), "--measure", "--set", "launch.gpus_per_node=16"]) == 2
    lease.release()
    assert f"--measure would disturb run {run.run_id}" in capsys.readouterr().err


def test_no_figure_is_cut_off_in_a_narrow_terminal(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    on_terminal(monkeypatch, "stdout")
    assert main(["tune", str(small), "--gpus", "8", *FEW]) == 0
    tables = capsys.readouterr().out.split("why the rest lost")[0]
    assert tables.count("tokens/s/GPU") == 2
    assert "…" not in tables


def test_a_file_of_somebody_else_is_left_as_it_is_and_the_same_job_gives_the_same_answer(
    orchestrator: Orchestrator, small: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "small.tuned.yaml"
    theirs.write_text("name: mine\n")
    said = orchestrator("tune", small, "--gpus", "8", *FEW)
    assert said.code == 2
    assert "is not an overlay of the tuner" in said.err
    assert theirs.read_text() == "name: mine\n"
    theirs.unlink()
    first, again = (orchestrator("tune", small, "--gpus", "8", *FEW) for _ in range(2))
    assert (first.code, again.code) == (0, 0), "its own overlay it writes again"
    assert first.out == again.out


def test_an_overlay_that_cannot_be_written(orchestrator: Orchestrator, small: Path) -> None:
    finished = orchestrator("tune", small, "--gpus", "8", "-o", "/proc/tuned.yaml", *FEW)
    assert finished.code == 2
    assert "/proc/tuned.yaml cannot be written" in finished.err


def test_a_cluster_says_what_its_machines_have(orchestrator: Orchestrator, large: Path, tmp_path: Path) -> None:
    stages = ("--keep", "pipeline_model_parallel_size", *ONE)
    (tmp_path / "clusters").mkdir()
    profile = "name: alps\ngpu: H200\npartition: gpu\npartitions: {gpu: {nodes: 4, gpus_per_node: 4}}\n"
    (tmp_path / "clusters" / "alps.yaml").write_text(profile)
    large.write_text(LARGE.replace("launch: {gpu: H100}\n", ""))
    found = orchestrator("tune", large, "--gpus", "16", "--cluster", "alps", *stages, "--json").json
    assert (found["gpu"], found["nodes"]) == ("H200", 4)
    assert {each["layout"]["parallelism"]["tensor_model_parallel_size"] for each in found["top"]} <= {1, 2, 4}
    said = orchestrator("tune", large, "--gpus", "32", "--cluster", "alps", *stages)
    assert said.code == 2
    assert "8 nodes are requested, but partition gpu of alps allows at most 4" in said.err


@pytest.mark.parametrize(("gib", "counts"), [(155, False), (157, True)])
def test_an_own_layout_that_is_tight_hides_no_other(
    orchestrator: Orchestrator, tmp_path: Path, gib: int, counts: bool
) -> None:
    """Nothing of a 70B fits on 8 of these GPUs for sure; the own layout needs 154.7 GiB, and others take less time."""
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "large.yaml").write_text(f"base: H100\nmemory_bytes: {gib * 2**30}\n")
    recomputing = "{recompute_granularity: full, recompute_method: block, recompute_num_layers: 60}"
    (tmp_path / "own.yaml").write_text(
        "{name: own, model: {preset: gpt-70b}, data: {random_tokens: true}, optimizer: {lr: 1e-4},"
        " parallelism: {tensor_model_parallel_size: 8, sequence_parallel: true}, schedule: {train_iters: 9},"
        " batch: {micro_batch_size: 1, global_batch_size: 1024}, launch: {gpu: large, gpus_per_node: 8},"
        f" runtime: {recomputing}}}"
    )
    asked = ("tune", "own.yaml", "--set", "runtime.layers=transformer_engine", *ONE)
    found = orchestrator(*asked, "--json").json
    assert found["fitting"] > 1
    assert found["best"]["device_bytes"] <= 0.99 * found["memory_bytes"]
    assert found["best"]["step_seconds"] < found["own"]["step_seconds"]
    said = "needs nearly all of the memory, 154.7 GiB; --measure shows whether it fits" in orchestrator(*asked).out
    assert said != counts
