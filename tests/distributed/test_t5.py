"""T5 on real text: the same losses at every layout, checkpoints across layouts, and a loss that falls."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from support.faults import PATIENCE, Ranks
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.checkpoints import committed
from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

STEPS = 8
MODEL: dict[str, Any] = {
    **{"architecture": "t5", "num_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "vocab_size": 320},
    **{"seq_length": 64, "decoder_seq_length": 32, "position_embedding_type": "relative"},
    **{"relative_attention_max_distance": 32, "normalization": "RMSNorm", "add_bias_linear": False},
}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prefix of an indexed data set of sentences: a package of Python's standard library, as bytes."""
    library, prefix = Path(sysconfig.get_path("stdlib")), tmp_path_factory.mktemp("text") / "json"
    command = [sys.executable, "-m", "orchestrator", "data", "tokenize", str(library / "json"), "--split-sentences"]
    command += ["--output-prefix", str(prefix), "--tokenizer-type", "byte_level", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return str(prefix)


def t5_job(name: str, prefix: str, **sections: Any) -> JobSpec:
    data = {
        "blend": [{"path": prefix}],
        "random_tokens": False,
        "split": "60,40,0",
        "tokenizer": {"vocab_extra_ids": 20},
    }
    given = {
        "data": data,
        "optimizer": {"lr": 3e-3},
        "schedule": {"train_iters": STEPS, "lr_warmup_iters": 2},
        **sections,
    }
    return tiny_job(name, **{**given, "model": {**MODEL, **sections.get("model", {})}})


@pytest.fixture(scope="module")
def reference(ranks: Ranks, sentences: str, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = t5_job("one", sentences, checkpoint={"save_interval": STEPS // 2})
    return ranks.must_train(make_run(tmp_path_factory.mktemp("reference"), job), job)


LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2-sp": layout(tp=2, sequence_parallel=True),
    "pp2": layout(pp=2),
    "dp2": layout(dp=2),
    "tp2-pp2-sp": layout(tp=2, pp=2, sequence_parallel=True),
    "pp4": layout(pp=4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, ranks: Ranks, reference: RunDir, sentences: str, tmp_path: Path) -> None:
    job = t5_job(name, sentences, parallelism=LAYOUTS[name])
    run = ranks.must_train(make_run(tmp_path, job), job)
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4
