"""`orchestrator tune` where something fails after a layout was measured: what was measured is reported all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.jobs import tune
from orchestrator.cli.main import main
from orchestrator.errors import UserError
from orchestrator.tuning.trial import Trial

TINY = """\
name: tiny
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, vocab_size: 250}
batch: {micro_batch_size: 2, global_batch_size: 16}
data: {random_tokens: true}
optimizer: {lr: 1.0e-3}
schedule: {train_iters: 20}
precision: {dtype: fp32}
runtime: {device: cpu}
tracking: {mlflow: false}
"""


class Trials:
    """The first `count` layouts can be run; then the machine has another run."""

    vocab_size = 250
    runs_dir = Path("runs")

    def __init__(self, count: int) -> None:
        self.count = count

    def known(self, job: Any) -> None:
        return None

    def run(self, job: Any) -> Trial:
        self.count -= 1
        if self.count < 0:
            raise UserError("no layout can be tried here: another process holds the run")
        return Trial("measured", step_seconds=0.125, fastest=0.1, slowest=0.2, steps=3, device="cpu", layers="torch")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "check_installed", lambda job: None)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def can_try(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """can_try(count): this machine runs so many layouts."""
    return lambda count: monkeypatch.setattr(tune, "Trials", lambda *_: Trials(count))


def test_a_layout_that_cannot_be_tried_takes_nothing_away_from_those_before_it(
    tiny: Path, can_try: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for count, is_reported in ((1, True), (0, False)):
        can_try(count)
        assert main(["tune", str(tiny), "--measure", "--best", "2", "--json"]) == 2
        said = capsys.readouterr()
        found = json.loads(said.out)
        assert ("no layout can be tried here" in said.err) is is_reported
        assert tiny.with_name("tiny.tuned.yaml").exists() is is_reported
        if is_reported:
            assert (found["best"]["measured"], found["best"]["step_seconds"]) == (True, 0.125)
            assert "no layout can be tried here" in found["failure"]
        else:
            assert found["exit_code"] == 2, "nothing was measured"
        tiny.with_name("tiny.tuned.yaml").unlink(missing_ok=True)


def test_an_overlay_that_cannot_be_written_takes_no_table_away(
    tiny: Path, can_try: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    can_try(99)
    words = ["tune", str(tiny), "--measure", "--best", "1", "-o", "/proc/tuned.yaml"]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "The fastest of" in said.out
    assert "wrote" not in said.out
    assert "/proc/tuned.yaml cannot be written" in said.err
    assert main([*words, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["path"] is None
    assert "/proc/tuned.yaml cannot be written" in found["failure"]
