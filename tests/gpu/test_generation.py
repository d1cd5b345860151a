"""On a GPU: a captured step gives the tokens of passes without a cache, and 1.7B parameters decode no slower than with
transformers and its static cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.measured import needs_gpus
from support.training import four_layer_job, layout, make_run

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

TESTS = Path(__file__).parents[1]
MODEL = {"num_query_groups": 2, "vocab_size": 300, "seq_length": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "learned": {"position_embedding_type": "learned_absolute"},
    "rotary": {"position_embedding_type": "rope", "rotary_percent": 0.5, "normalization": "RMSNorm"},
    "window": {"position_embedding_type": "rope", "sliding_window": 5, "qk_layernorm": True},
    "alibi": {"position_embedding_type": "alibi"},
    "capped": {"position_embedding_type": "rope", "attention_logit_softcapping": 20.0, "final_logit_softcapping": 9.0},
}


def variant(name: str) -> JobSpec:
    return four_layer_job(
        name, model={**MODEL, **VARIANTS[name]}, parallelism=layout(), runtime={"layers": "torch"},
        schedule={"train_iters": 5},
    )  # fmt: skip


def jobs(text: str) -> list[JobSpec]:
    return [variant(name) for name in VARIANTS]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_captured_step_changes_nothing(name: str, ranks: Ranks, tmp_path: Path) -> None:
    """Greedy and drawn, in batches of several sizes and of the same size again, whose graph is used again."""
    needs_gpus(1, "torch")
    job = variant(name)
    run = ranks.must_train(make_run(tmp_path, job), job)
    (tmp_path / "job.json").write_text(dump_resolved(job))
    program = TESTS / "unit" / "inference" / "generate_program.py"
    arguments = (str(tmp_path / "job.json"), str(tmp_path))
    assert ranks.starter.start(run.path, 1, *arguments, program=program).wait() == 0
    found = json.loads((tmp_path / "rank-0.json").read_text())
    assert found["cached"] == found["recomputed"]
    assert found["drawn in twos"] == found["drawn"]
    assert found["of each its own"] == found["each alone"]
    assert found["~measured"] == pytest.approx(found["~scored"], abs=1e-4)


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_decoding_is_no_slower_than_transformers(model: str, tmp_path: Path) -> None:
    """Greedy, batch 1 and 32. What transformers does by itself with a static cache is to compile. $GENERATION_SPEED
    names a folder in which the models are kept."""
    needs_gpus(1, "torch")
    folder = os.environ.get("GENERATION_SPEED", str(tmp_path))
    finished = subprocess.run(
        [sys.executable, "-m", "support.generation_speed", folder, model],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": "ignore",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    entries = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    for entry in entries:
        print(f"\nRESULT {json.dumps(entry)}")
    assert [entry["batch"] for entry in entries] == [1, 32]
    for entry in entries:
        best = min(entry["static"]["seconds"], entry["compiled"]["seconds"])
        assert entry["ours"]["seconds"] < 1.02 * best, entry
