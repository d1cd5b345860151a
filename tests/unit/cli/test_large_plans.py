"""`orchestrator plan` for thousands of GPUs: as readable and as quick as for a few."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.pace import slowness
from support.this_machine import Gpus

LARGEST = """\
name: large
model: {preset: gpt-462b}
parallelism: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 16, sequence_parallel: true}
batch: {global_batch_size: 3072}
data: {random_tokens: true}
optimizer: {lr: 1e-4}
schedule: {train_iters: 100}
launch: {nodes: 768, gpus_per_node: 8}
"""
TELLS_ITS_MEMORY = """
import atexit, sys
atexit.register(lambda: sys.stderr.writelines(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
from orchestrator.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""ru_maxrss would not do: of a process that is started from this one it is at least what this one takes."""


def test_a_published_row_is_planned_with_the_layers_of_the_machine_that_is_named(
    orchestrator: Any, tmp_path: Path, gpus: Gpus
) -> None:
    """Megatron-LM's 462B on 6,144 H100s, 47 % published: with torch's layers 40.4 % are planned."""
    path, site = tmp_path / "large.yaml", tmp_path / "site.yaml"
    path.write_text(LARGEST)
    site.write_text("name: site\ngpu: H100\n")
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
    kept = [word for size in (*sizes, "micro_batch_size") for word in ("--keep", size)]
    for named, layers, mfu in (
        (("--gpu", "h100"), "transformer_engine", 0.464),
        (("--cluster", site), "transformer_engine", 0.464),
        (("--gpu", "h100", "--set", "runtime.layers=torch"), "torch", 0.404),
    ):
        plan = orchestrator("plan", path, *named, "--json").json
        assert plan["layers"]["name"] == layers
        assert plan["time"]["mfu"] == pytest.approx(mfu, abs=0.01)
        asked = ("tune", path, *named, *kept, "--output", tmp_path / "tuned.yaml", "--json")
        tuned = orchestrator(*asked).json
        assert tuned["layers"]["name"] == layers
        assert tuned["own"]["mfu"] == plan["time"]["mfu"]


def test_the_largest_layout_stays_readable(orchestrator: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(LARGEST)
    finished = orchestrator("plan", job)
    assert finished.code == 0
    assert "of 6144" in finished.out
    assert len(finished.out.splitlines()) < 130
    assert len(orchestrator("plan", job, "--json").json["topology"]["ranks"]) == 6144


def test_the_largest_layout_takes_little(tmp_path: Path) -> None:
    """A second and 200 MB. What is asserted is processor time, at the promised pace: the best of a few tells least of
    what else the machine does.
    """
    job = tmp_path / "job.yaml"
    job.write_text(LARGEST)
    seconds: list[float] = []
    while not seconds or (min(seconds) >= 1.0 and len(seconds) < 10):
        with open(os.devnull, "wb") as nowhere:
            process = subprocess.Popen(
                [sys.executable, "-c", TELLS_ITS_MEMORY, "plan", str(job), "--json"],
                stdout=nowhere,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stderr is not None
            with process.stderr as stream:
                said = stream.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, said
        assert int(said.split()[1]) < 200_000, said
        seconds.append((used.ru_utime + used.ru_stime) / slowness())
    assert min(seconds) < 1.0, seconds


def test_tensor_parallelism_that_is_to_overlap_is_said(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(LARGEST)
    for overlaps in (True, False):
        words = ("runtime.layers=transformer_engine", f"parallelism.tp_comm_overlap={str(overlaps).lower()}")
        asked = ("plan", path, *(word for each in words for word in ("--set", each)))
        said = " ".join(orchestrator(*asked).out.split())
        assert ("tensor parallelism overlapped" in said) == overlaps
        assert orchestrator(*asked, "--json").json["time"]["tp_comm_overlap"] == overlaps
