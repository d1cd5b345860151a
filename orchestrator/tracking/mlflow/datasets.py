"""The sources of a run as MLflow's data sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag

_LONGEST_NAME = 500
_DIGEST_DIGITS = 16
_PROFILE = ("tokens", "documents", "sequences", "bytes", "dtype")
_TAGS = ("weight", "share")


def dataset_inputs(records: Sequence[Mapping[str, Any]]) -> list[DatasetInput]:
    """One input for each record of datasets.json. MLflow knows a data set by name and digest, and takes each once for a
    run: what training and validation share is two data sets, whose digests differ.
    """
    return [_input(record) for record in records]


def _input(record: Mapping[str, Any]) -> DatasetInput:
    path, part = Path(str(record["path"])), str(record["part"])
    digest = str(record["digest"])[:_DIGEST_DIGITS]
    if part != "training":
        digest = hashlib.sha256(f"{digest} {part}".encode()).hexdigest()[:_DIGEST_DIGITS]
    profile = {name: record[name] for name in _PROFILE if record.get(name) is not None}
    tags = {"mlflow.data.context": part} | {name: f"{record[name]:g}" for name in _TAGS if record.get(name) is not None}
    dataset = Dataset(
        name=path.name[:_LONGEST_NAME],
        digest=digest,
        source_type="local",
        source=json.dumps({"uri": str(path)}),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, [InputTag(key, value) for key, value in tags.items()])
