"""Generation with a key/value cache under tensor and pipeline parallelism, and the command around it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import layout, make_run, must_train, tiny_job

from orchestrator.rundir import RunDir
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a tiny training, and torchrun once for each layout")]

HERE = Path(__file__).parent
MODEL = {"num_query_groups": 2, "vocab_size": 300, "position_embedding_type": "learned_absolute", "seq_length": 32}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp1": layout(),
    "tp2": layout(tp=2, sequence_parallel=True),
    "pp2": layout(pp=2, vp=2),
}


def job(parallelism: dict[str, Any]) -> Any:
    data = {"random_tokens": True, "tokenizer": {"type": "byte_level"}}
    # Trained with logits or without: there are some to draw from.
    runtime = {"fused_linear_cross_entropy": parallelism != LAYOUTS["tp1"]}
    steps = {"train_iters": 10}
    return tiny_job("writer", model=MODEL, data=data, parallelism=parallelism, schedule=steps, runtime=runtime)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    trained = job(layout())
    return must_train(make_run(tmp_path_factory.mktemp("runs"), trained), trained)


def generate(run: RunDir, name: str, out: Path) -> list[dict[str, Any]]:
    """What each rank generated at a layout."""
    written = job(LAYOUTS[name])
    (out / "job.json").write_text(dump_resolved(written))
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(written.world_size), str(HERE / "generate_program.py")),
            *(str(run.path), str(out / "job.json"), str(out)),
        ],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(written.world_size)]


@pytest.fixture(scope="module")
def alone(run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = generate(run, "tp1", tmp_path_factory.mktemp("tp1"))
    return found


def test_the_cache_changes_nothing(alone: dict[str, Any]) -> None:
    assert len(alone["cached"]) == 12
    assert alone["cached"] == alone["recomputed"]


def test_seed_and_end(alone: dict[str, Any]) -> None:
    assert alone["drawn"] != alone["other seed"]
    end = alone["cached"][4]
    assert alone["ended"] == alone["cached"][: alone["cached"].index(end)]


@pytest.mark.parametrize("name", ["tp2", "pp2"])
def test_other_layouts_generate_the_same(run: RunDir, alone: dict[str, Any], name: str, tmp_path: Path) -> None:
    logits = ("logits", "alone", "log-probabilities")
    for rank in generate(run, name, tmp_path):
        for field in logits:
            for ours, theirs in zip(rank.pop(field), alone[field], strict=True):
                torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-5, rtol=0)
        assert rank == {name: value for name, value in alone.items() if name not in logits}


def test_logits_are_those_of_each_list_alone_without_padding(alone: dict[str, Any]) -> None:
    """300 tokens are padded to 384; the longest list has five tokens."""
    logits = [torch.tensor(rows) for rows in alone["logits"]]
    assert [tuple(rows.shape) for rows in logits] == [(3, 300), (5, 300), (2, 300)]
    torch.testing.assert_close(logits[0], torch.tensor(alone["alone"]), atol=1e-5, rtol=0)
    assert logits[0].std() > 0.1
    for row, tokens in enumerate(([7, 8, 9], [1, 2, 3, 4, 5], [250, 299])):
        for place, token in enumerate(tokens[1:]):
            scores = logits[row][place]
            assert alone["log-probabilities"][row][place] == pytest.approx(scores.log_softmax(0)[token].item(), 1e-5)
            assert alone["likeliest"][row][place] == (scores.argmax().item() == token)


def orchestrator(run: RunDir, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "generate", str(run.path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=run.path.parent)


def test_the_command_prints_one_json_document(run: RunDir) -> None:
    finished = orchestrator(run, "--prompt", "héllo", "--max-new-tokens", "8", "--temperature", "0", "--json")
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer["prompt"] == "héllo"
    assert answer["iteration"] == 10
    assert isinstance(answer["text"], str)


def test_more_than_the_learned_positions_is_refused(run: RunDir) -> None:
    finished = orchestrator(run, "--prompt", "12345", "--max-new-tokens", "28", "--json")
    assert finished.returncode == 2
    assert "at most 27 new tokens" in json.loads(finished.stdout)["message"]
    assert "Traceback" not in finished.stderr


def test_a_damaged_checkpoint_is_named_and_not_used(run: RunDir, tmp_path: Path) -> None:
    damaged = RunDir(shutil.copytree(run.path, tmp_path / "writer" / "run"))
    shutil.copytree(damaged.checkpoint(10), damaged.checkpoint(20))
    marker = damaged.checkpoint(20) / "commit.json"
    marker.write_text(marker.read_text().replace('"iteration": 10', '"iteration": 20'))
    file = sorted(damaged.checkpoint(20).glob("*.distcp"))[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    finished = orchestrator(damaged, "--prompt", "a", "--max-new-tokens", "1", "--json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["iteration"] == 10
    assert f"warning: skipped a checkpoint: {file} is damaged" in finished.stderr
    finished = orchestrator(damaged, "--prompt", "a", "--max-new-tokens", "1", "--json", "--iteration", "20")
    assert finished.returncode == 1
    assert f"{file} is damaged: its CRC-32 is" in json.loads(finished.stdout)["message"]
