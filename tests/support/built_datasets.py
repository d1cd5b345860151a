"""The data sets of a training, built from indexed ones."""

from __future__ import annotations

from pathlib import Path

from orchestrator.data.samples.datasets import Datasets, build_datasets
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec


def datasets_of(
    data: DataSpec, model: ModelSpec, cache: Path, train: int, validation: int = 0, test: int = 0
) -> Datasets:
    """With so many samples, and the tokenizer that `data` names."""
    return build_datasets(
        data,
        model=model,
        tokenizer=load_tokenizer(data.tokenizer),
        train_samples=train,
        validation_samples=validation,
        test_samples=test,
        cache_dir=cache,
    )
