"""`orchestrator bench` where something fails after the timed steps: what was measured is reported, the failure too."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults import Ranks, ranks_forked_in
from support.programs import run_instead
from support.refusals import before

from orchestrator.cli.main import main

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow("trains with two processes each time: what failed late is to have been measured"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="training needs torch"),
]

TINY = """\
name: tiny
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, vocab_size: 250}
parallelism: {tensor_model_parallel_size: 2}
batch: {micro_batch_size: 2, global_batch_size: 4}
data: {random_tokens: true}
optimizer: {lr: 1.0e-3}
schedule: {train_iters: 20}
precision: {dtype: fp32}
runtime: {device: cpu}
tracking: {mlflow: false}
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks with torch's compiler, which each would import: the profiler asks for its settings."""
    with ranks_forked_in(tmp_path_factory.mktemp("ranks"), "torch._inductor") as made:
        yield made


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


FAILING = """
import os, signal
from orchestrator.runtime.bench import measurement
from orchestrator.runtime.bench.__main__ import callbacks
from orchestrator.runtime.__main__ import main
real, when = measurement.Benchmark.{method}, {number}
def failing(self, session, number):
    if number == when and session.processes.ranks.rank == 1:
        if {dies}:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("CUPTI_ERROR_NOT_COMPATIBLE")
    return real(self, session, number)
measurement.Benchmark.{method} = failing
if {stops}:
    def asking(self, session, number):
        session.launch.run.stop_file.write_text("{{}}")
        return real(self, session, number)
    measurement.Benchmark.{method} = asking
raise SystemExit(main(callbacks))
"""


@pytest.mark.parametrize(
    ("number", "how", "code"),
    [(0, "raises", 1), (3, "raises", 1), (1, "dies", 1), (0, "is stopped", 130)],
)
def test_steps_were_measured_though_their_profile_failed(
    number: int,
    how: str,
    code: int,
    ranks: Ranks,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dies, stops = how == "dies", how == "is stopped"
    (tmp_path / "programs").mkdir()
    program = FAILING.format(method="_profile", number=number, dies=dies, stops=stops)
    (tmp_path / "programs" / "failing_bench.py").write_text(program)
    for name, value in ranks.for_commands(tmp_path / "programs").items():
        monkeypatch.setenv(name, value)
    run_instead(monkeypatch, "failing_bench", "bench")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", tiny.name, "--steps", "3", "--warm-up", "1", "-o", "page.md", "--json"]) == code
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["step"]["steps"] == 3
    assert found["tokens_per_second_per_gpu"] == pytest.approx(4 * 64 / found["step"]["seconds"] / 2)
    assert (found["profile"], found["parts"], found["largest_loss"]) == (None, [], None)
    assert found["predicted"]["step_seconds"] > 0
    assert "a step by part was not measured" in found["failure"]
    assert "a step by part was not measured" in said.err
    if how == "raises":
        assert "CUPTI_ERROR_NOT_COMPATIBLE" in found["failure"]
    page = (tmp_path / "page.md").read_text()
    assert "step: " in page
    assert "## Setup" in page
    assert "A step by part was not measured" in page
    assert "/" + "tmp/" not in page, "no path of this machine"


def test_a_step_by_part_though_the_file_of_the_trace_cannot_be_written(
    ranks: Ranks, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder goes away meanwhile."""
    for name, value in ranks.for_commands().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "traces").mkdir()

    before(monkeypatch, "orchestrator.bench.measurement.launch", lambda *run, **how: (tmp_path / "traces").rmdir())
    monkeypatch.chdir(tmp_path)
    files = ("--trace", "traces/one.json", "-o", "page.md")
    assert main(["bench", tiny.name, "--steps", "3", "--warm-up", "1", *files]) == 2
    said = capsys.readouterr()
    assert "step: " in said.out
    assert "matrix products" in said.out
    assert "traces/one.json cannot be written" in said.err
    assert "step: " in (tmp_path / "page.md").read_text()
