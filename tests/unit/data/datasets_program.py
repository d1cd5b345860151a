"""One rank: `datasets_program.py OUT FIRST SECOND CACHE` writes what it reads of a blend of two to OUT/rank-N.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from orchestrator.data.samples.datasets import build_datasets
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec


def main() -> int:
    out, first, second, cache = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    datasets = build_datasets(
        data := DataSpec.model_validate({"blend": [0.6, first, 0.4, second], "validation": [first, second]}),
        model=ModelSpec(num_layers=1, hidden_size=64, num_attention_heads=1, seq_length=32),
        tokenizer=load_tokenizer(data.tokenizer),
        train_samples=50,
        validation_samples=5,
        test_samples=0,
        cache_dir=Path(cache),
    )
    assert datasets.train is not None
    read = [datasets.train[index]["tokens"].tolist() for index in range(50)]
    Path(out, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(read))
    torch.distributed.destroy_process_group()
    return 0
