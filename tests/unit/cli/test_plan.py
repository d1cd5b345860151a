"""`orchestrator plan`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.shipped import SHIPPED
from support.training import make_run

from orchestrator.api.planned_job import judge_files
from orchestrator.cli.jobs.tables.plan_tables import tables
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.spec.loading import load_job

SEED = """\
name: seed
model: {preset: gpt2-large}
parallelism: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2}
batch: {micro_batch_size: 24, num_micro_batches: 2}
data: {random_tokens: true}
optimizer: {lr: 5e-5}
schedule: {train_iters: 490}
"""


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    path = tmp_path / "seed.yaml"
    path.write_text(SEED)
    return path


def test_that_passes_are_captured_is_said(orchestrator: Any) -> None:
    small = SHIPPED["gpt-345m"]
    asked = ("plan", small, "--gpu", "H200", "--set", "batch.micro_batch_size=1", "--set", "batch.global_batch_size=8")
    assert ", CUDA graphs" in " ".join(orchestrator(*asked).out.split())
    without = (*asked, "--set", "runtime.cuda_graphs=false")
    said = " ".join(orchestrator(*without).out.split())
    assert ", CUDA graphs" not in said
    assert "runtime.cuda_graphs rules out a CUDA graph, which would spare it" in said
    plans = [orchestrator(*each, "--json").json for each in (asked, without)]
    assert [each["time"]["cuda_graphs"] for each in plans] == [True, False]
    assert plans[0]["time"]["step_seconds"] < 0.5 * plans[1]["time"]["step_seconds"]
    assert plans[0]["memory"]["device_bytes"] > plans[1]["memory"]["device_bytes"]


def test_that_the_host_is_the_limit_is_said_and_no_warning(orchestrator: Any, seed: Path) -> None:
    for micro, bound in ((1, True), (24, False)):
        asked = ("plan", seed, "--gpu", "H200", "--set", f"batch.micro_batch_size={micro}")
        time = orchestrator(*asked, "--json").json["time"]
        share = time["parts"]["host"] / time["step_seconds"]
        said = " ".join(orchestrator(*asked).out.split())
        assert (f"the host: {share:.0%} of a step the GPU waits for it to launch kernels" in said) == bound
        assert ("bound by the host" in said) == bound
        assert "GPU waits" not in str(orchestrator(*asked, "--json").json["verdict"])


def test_images_and_the_stage_that_encodes_them(orchestrator: Any) -> None:
    asked: list[Any] = ["plan", SHIPPED["llava1.5-7b"]]
    said = " ".join(orchestrator(*asked).out.split())
    encoder = "by an encoder of 23 layers, hidden 1024, frozen; 311.9M parameters on the first stage"
    assert f"images 1 x 576 tokens to a sequence, {encoder}" in said
    assert orchestrator(*asked, "--json").json["parameters"]["vision"] == 311_888_896
    for change in (
        "model.vision={images_per_sequence: 3, freeze: false}",
        "batch.micro_batch_size=2",
        "parallelism.pipeline_model_parallel_size=4",
        "parallelism.tensor_model_parallel_size=1",
        "parallelism.sequence_parallel=false",
    ):
        asked += ["--set", change]
    said = " ".join(orchestrator(*asked).out.split())
    assert "images 3 x 576 tokens to a sequence, by an encoder of 23 layers, hidden 1024; 311.9M" in said
    assert "bound by the first stage, which encodes images as well; a step takes" in said


def test_that_a_slow_host_would_be_the_limit_is_said_until_one_is_measured(
    orchestrator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = (
        "parallelism.pipeline_model_parallel_size=2",
        "launch.gpus_per_node=2",
        "runtime.layers=transformer_engine",
    )
    asked = ["plan", SHIPPED["gpt-1.7b"], "--gpu", "H100"]
    asked += [word for each in (*pipeline, "batch.micro_batch_size=1") for word in ("--set", each)]
    time = orchestrator(*asked, "--json").json["time"]
    more = time["slow_host_step_seconds"] / time["step_seconds"] - 1
    assert 0.1 < more < 0.5
    expected = f"on a host half as fast as planned, which is common, a step takes {more:.0%} more"
    assert expected in " ".join(orchestrator(*asked).out.split())
    assert expected not in orchestrator(*asked, "--set", "batch.micro_batch_size=4").out

    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "H100.yaml").write_text("base: H100\nefficiency: {launch: 1.2e-5}\n")
    measured = orchestrator(*asked, "--json").json["time"]
    assert measured["slow_host_step_seconds"] is None
    assert measured["step_seconds"] == pytest.approx(time["slow_host_step_seconds"])
    assert "half as fast" not in orchestrator(*asked).out


@pytest.mark.parametrize(
    ("micro_batches", "way_out"),
    [
        (2, "less with --set batch.micro_batch_size=2 --set batch.num_micro_batches=1"),
        (1, "a step of 8 times the samples takes as long with --set batch.micro_batch_size=8"),
    ],
)
def test_what_to_do_about_the_host(orchestrator: Any, seed: Path, micro_batches: int, way_out: str) -> None:
    words = ("batch.micro_batch_size=1", f"batch.num_micro_batches={micro_batches}")
    said = orchestrator("plan", seed, "--gpu", "H200", *(word for each in words for word in ("--set", each))).out
    assert way_out in " ".join(said.split())


def test_where_torchs_layers_ask_less_of_the_host_they_are_named(orchestrator: Any) -> None:
    small = SHIPPED["gpt-1.7b"]
    asked = ("plan", small, "--gpu", "H200", "--set", "runtime.cuda_graphs=false", "--set", "batch.micro_batch_size=1")

    def planned(length: int, layers: str, *more: str) -> tuple[str, float]:
        chosen = (f"model.seq_length={length}", f"runtime.layers={layers}", *more)
        words = [*asked, *(word for each in chosen for word in ("--set", each))]
        seconds = orchestrator(*words, "--json").json["time"]["step_seconds"]
        return " ".join(orchestrator(*words).out.split()), seconds

    (said, engines), (of_torch, torchs) = (planned(512, layers) for layers in ("transformer_engine", "torch"))
    assert f"; a step takes {1 - torchs / engines:.0%} less with --set runtime.layers=torch" in said
    others = [
        of_torch,
        *(
            planned(*each)[0]
            for each in (
                (4096, "transformer_engine"),
                (512, "transformer_engine", "precision.fp8={}"),
            )
        ),
    ]
    assert not any("less with --set runtime.layers" in each for each in others)


def test_stages_that_would_take_equally_long_are_named(orchestrator: Any) -> None:
    asked = ["plan", SHIPPED["gpt-7.1b"], "--gpu", "H200"]
    for change in ("parallelism.pipeline_model_parallel_size=2", "batch.micro_batch_size=1", "launch.gpus_per_node=4"):
        asked += ["--set", change]
    better = "parallelism.num_layers_in_last_pipeline_stage=14"
    even, uneven = (
        orchestrator(*asked, "--json").json["time"],
        orchestrator(*asked, "--set", better, "--json").json["time"],
    )
    assert even["balanced"] == {"set": better, "step_seconds": uneven["step_seconds"]}
    saved = 1 - uneven["step_seconds"] / even["step_seconds"]
    assert saved > 0.03
    said = " ".join(orchestrator(*asked).out.split())
    assert f"bound by the last stage, which has the output layer as well; a step takes {saved:.1%} less" in said
    assert f"less with --set {better} takes" in said
    assert uneven["balanced"] is None
    assert "the last stage" not in orchestrator(*asked, "--set", better).out
    asked += ["--set", "parallelism.virtual_pipeline_model_parallel_size=3"]
    letters = "parallelism.pipeline_model_parallel_layout=Et*6|(t*5|)*4t*4L"
    assert orchestrator(*asked, "--json").json["time"]["balanced"]["set"] == letters
    assert f"less with --set '{letters}' takes" in " ".join(orchestrator(*asked).out.split())


WAITING = {"t5-220m"}
"""A pipeline of T5, which cannot be a CUDA graph."""


@pytest.mark.parametrize("job", SHIPPED.values(), ids=SHIPPED)
def test_gpus_do_not_wait_in_shipped_jobs(orchestrator: Any, job: Path) -> None:
    said = orchestrator("plan", job).out
    assert ("the host: " in said) == (job.stem in WAITING)
    assert "the last stage, " not in said
    if job.stem == "mixtral-8x7b":
        embedding = f"{32_000 * 4096:,}"
        assert f"12,879,925,248 (of these embedding {embedding}, output layer {embedding})" in said


def test_the_parameters_of_the_seeds_log(orchestrator: Any, seed: Path) -> None:
    finished = orchestrator("plan", seed)
    assert finished.code == 0
    assert "210753280" in finished.out
    assert "209445120" in finished.out
    assert "50,257 tokens, padded to 50,432" in finished.out


def test_json(orchestrator: Any, seed: Path) -> None:
    plan = orchestrator("plan", seed, "--json").json
    counts = {(rank["tp"], rank["pp"]): rank["parameters"] for rank in plan["parameters"]["per_rank"]}
    assert counts == {(0, 0): 210753280, (1, 0): 210753280, (0, 1): 209445120, (1, 1): 209445120}
    assert plan["parameters"]["total"] == 774254080
    assert plan["topology"]["world_size"] == 4
    assert plan["batch"]["global_batch_size"] == 48
    assert plan["steps"] == 490


def test_tables(orchestrator: Any, seed: Path) -> None:
    extra = ("--set", "batch.rampup_batch_size=[24, 24, 1000]", "--set", "launch.gpus_per_node=4")
    out = orchestrator("plan", seed, *extra).out
    for title in ("Plan of seed", "Pipeline stages", "Ranks", "Batch size ramp-up"):
        assert title in out
    assert "18-35" in out
    assert "Data blend" not in out


def test_a_rate_that_stays_is_said_not_to_decay(orchestrator: Any, seed: Path) -> None:
    style = ["--set", "schedule.lr_decay_style=WSD", "--set", "schedule.lr_wsd_decay_iters"]
    assert "k samples, and 0 behind them" in orchestrator("plan", seed, *style[:-1], f"{style[-1]}=0").out
    assert "exponential to 0 over the last 240 of" in orchestrator("plan", seed, *style[:-1], f"{style[-1]}=5").out


def test_what_it_takes(orchestrator: Any, seed: Path) -> None:
    finished = orchestrator("plan", seed, "--gpu", "a100", "--json")
    assert (finished.code, finished.err) == (0, "")
    plan = finished.json
    assert plan["gpu"]["name"] == "A100"
    assert plan["gpu"]["from"] == "--gpu"
    written = orchestrator("plan", seed, "--set", "launch.gpu=a100", "--json").json
    assert written["gpu"]["from"] == "launch.gpu"
    memory, time, verdict = plan["memory"], plan["time"], plan["verdict"]
    assert memory["fit"] == "fits"
    assert [(rank["tp"], rank["pp"]) for rank in memory["per_rank"]] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert max(sum(rank["parts"].values()) for rank in memory["per_rank"]) == memory["peak_bytes"]
    assert sum(time["parts"].values()) == pytest.approx(time["step_seconds"])
    tokens = 48 * 1024
    assert time["tokens_per_second_per_gpu"] == pytest.approx(tokens / time["step_seconds"] / 4)
    assert time["tflops_per_gpu"] == pytest.approx(plan["flops"]["per_step"] / time["step_seconds"] / 4 / 1e12)
    assert time["mfu"] == pytest.approx(time["tflops_per_gpu"] / 312)
    assert time["training_seconds"] == pytest.approx(490 * time["step_seconds"])
    assert verdict["stops"] == []
    # The disk may be full.
    [warning] = [each for each in verdict["warnings"] if not each["path"].startswith("checkpoint.")]
    assert (warning["code"], warning["path"]) == ("pipeline_bubble", "parallelism.pipeline_model_parallel_size")
    out = orchestrator("plan", seed, "--gpu", "A100").out
    for said in ("A100 (--gpu)", "% MFU", "Memory of a rank of stage", "Verdict: nothing stops this job; "):
        assert said in out


def test_what_does_not_fit_is_shown_and_refused(orchestrator: Any, seed: Path) -> None:
    small = ("--gpu", "V100-16GB")
    planned = orchestrator("plan", seed, *small)
    assert planned.code == 2
    assert "stop   " in planned.out
    assert f"{seed}:4:9: batch.micro_batch_size: memory does not fit: a rank of stage" in planned.out
    refused = orchestrator("validate", seed, *small)
    assert (refused.code, refused.out) == (2, "")
    assert "what makes it fit, the cheapest first:" in refused.err
    assert orchestrator("validate", seed, *small, "--set", "batch.micro_batch_size=1").code == 0


def test_a_cpu_has_no_cuda(orchestrator: Any, seed: Path) -> None:
    planned = orchestrator("plan", seed, "--set", "runtime.device=cpu")
    assert planned.code == 0
    assert "cpu (runtime.device is cpu), torch layers (on the CPU)" in planned.out
    assert "peak of the training program" in planned.out
    for word in ("CUDA", "MFU", "kWh", "GPU hours"):
        assert word not in planned.out


def test_what_is_in_no_file_is_not_the_doing_of_an_option(orchestrator: Any, seed: Path) -> None:
    said = orchestrator("plan", seed, "--gpu", "H100", "--set", "schedule.train_iters=10M").out
    assert f"warning {seed}: checkpoint.save_interval" in said


def test_strict_refuses_warnings(orchestrator: Any, seed: Path) -> None:
    assert orchestrator("validate", seed).code == 0
    refused = orchestrator("validate", seed, "--strict", "--json")
    assert refused.code == 2
    assert "gpu_assumed" in {each["code"] for each in refused.json["problems"]}
    assert orchestrator("plan", seed, "--strict").code == 2
    assert orchestrator("validate", seed, "--strict", "--gpu", "H200", "--set", "batch.num_micro_batches=16").code == 0


def test_an_unknown_gpu(orchestrator: Any, seed: Path) -> None:
    for words in (("--gpu", "H20O"), ("--set", "launch.gpu=H20O")):
        finished = orchestrator("plan", seed, *words)
        assert finished.code == 2
        assert finished.err.startswith(
            "--gpu H20O: unknown GPU" if words[0] == "--gpu" else "--set launch.gpu=H20O: launch.gpu: "
        )
        assert "did you mean" in finished.err
        assert "H200" in finished.err


def test_drawings(orchestrator: Any, seed: Path, tmp_path: Path) -> None:
    finished = orchestrator("plan", seed, "--html", "plan.html", "--svg", "drawn")
    assert finished.code == 0
    assert "drawn: plan.html" in finished.out
    page = (tmp_path / "plan.html").read_text()
    assert "Plan of seed" in page
    assert "A box shows its rank" in page
    assert " ms" in (tmp_path / "drawn" / "timeline.svg").read_text(), "in the seconds of the forecast"
    assert orchestrator("plan", seed, "--html", "plan.html").code == 0, "a page is drawn anew"


def test_a_page_replaces_no_other_file(orchestrator: Any, seed: Path) -> None:
    refused = orchestrator("plan", seed, "--html", seed)
    assert refused.code == 2
    assert "exists and is not an HTML page" in refused.err
    assert seed.read_text() == SEED


def test_a_narrow_console_cuts_no_number(seed: Path) -> None:
    blend = '{blend: ["a/rather/long/path/to/some/data", "b"]}'
    seed.write_text(SEED.replace("{random_tokens: true}", blend).replace("train_iters: 490", "train_tokens: 9000B"))
    judged = judge_files([seed], ["evaluation.eval_interval=500"], None, None)
    shown = {}
    for width in (80, 300):
        out = io.StringIO()
        console = Console(width=width, file=out, highlight=False, markup=False)
        *_, last = tables(judged, console)
        console.print(last)
        shown[width] = out.getvalue()
    assert "…" not in shown[80]
    assert "4.5T" in shown[80]
    assert "4,500,000,0" in shown[300]


def test_groups_in_which_nothing_is_sent_are_not_shown(orchestrator: Any, seed: Path) -> None:
    tied, untied = (
        orchestrator("plan", seed, f"--set=model.untie_embeddings_and_output_weights={value}").out
        for value in ("false", "true")
    )
    assert "embedding  " in tied
    assert "embedding  " not in untied


def test_names_with_brackets_are_shown_as_they_are(orchestrator: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(SEED.replace("{random_tokens: true}", '{blend: ["data/[bold]x[/bold]"]}'))
    finished = orchestrator("plan", job)
    assert finished.code == 0
    assert "data/[bold]x[/bold]" in finished.out
    assert "not here" in finished.out


@pytest.mark.parametrize("job", SHIPPED.values(), ids=SHIPPED)
def test_every_shipped_job_has_a_plan(orchestrator: Any, job: Path) -> None:
    finished = orchestrator("plan", job)
    assert (finished.code, finished.err) == (0, "")
    assert "Pipeline stages" in finished.out
    assert orchestrator("validate", job, "--json").json["ok"] is True


def test_weights_to_begin_with_are_exported_as_what_they_came_as(
    orchestrator: Any, job_file: Path, tmp_path: Path
) -> None:
    """Of two families that its network is of, from a checkpoint and from a run that has it; else as the first."""
    for name, family, shown in (("phi", "Phi-3", "Phi-3"), ("other", "Gemma", "Llama"), ("trained", None, "Llama")):
        run = make_run(tmp_path / name, load_job([job_file]).job)
        run.checkpoint(0).mkdir(parents=True)
        write_commit(run.checkpoint(0), iteration=0, consumed_samples=0, files={}, family=family)
        for place in (run.path, run.checkpoint(0)):
            for command in ("plan", "validate"):
                begun = ("--set", f"checkpoint.pretrained={place}")
                said = " ".join(orchestrator(command, job_file, *begun).out.split())
                assert f"exports as {shown} (Hugging Face)" in said
