"""A BERT on a GPU: Transformer Engine's layers train as torch's do, padding left out by both."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.faults import Ranks
from support.fixtures import real_sentences
from support.training import largest_difference, make_run, tiny_job, values

__all__ = ["real_sentences"]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_transformer_engines_layers_train_as_torchs(ranks: Ranks, real_sentences: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    curves = []
    for layers in ("torch", "transformer_engine"):
        job = tiny_job(
            layers.replace("_", "-"),
            model={
                **{"architecture": "bert", "hidden_size": 256, "num_attention_heads": 4, "seq_length": 256},
                **{"position_embedding_type": "learned_absolute", "vocab_size": 300},
            },
            data={"blend": [{"path": real_sentences}], "random_tokens": False, "split": "90,10,0"},
            precision={"dtype": "bf16"},
            runtime={"layers": layers},
        )
        curves.append(values(ranks.must_train(make_run(tmp_path, job), job), "train/loss/lm"))
    difference = largest_difference(*curves)
    print(f"\nRESULT bert, torch against transformer_engine: largest relative difference {difference:.2e}")
    assert difference < 1e-2
