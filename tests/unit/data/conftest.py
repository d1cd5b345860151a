"""Small corpora, a small tokenizer, and ways to run the data programs."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.faults import Ranks
from support.pictures import make_album

from orchestrator.data.__main__ import run
from orchestrator.data.request import TokenizeRequest, TrainTokenizerRequest

Tokenize = Callable[..., Path]
Program = Callable[..., subprocess.CompletedProcess[str]]

SENTENCES = (
    "def main(argv):\n    return len(argv)  # how many\n",
    "The naïve café — 東京 — costs 12.50 €.\n\n\tIt's we'll they've\n",
    "x = [1, 22, 333]\nfor  i   in range(10):\n        print( i )\n",
)


def corpus_text(document: int) -> str:
    """Text of a document: longer for some, the same for the same number."""
    return "".join(SENTENCES[(document + i) % 3] for i in range(1 + document % 7)) + f"end {document}"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 documents as JSON lines."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = [json.dumps({"text": corpus_text(i), "title": f"Title {i}"}) for i in range(300)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A byte-level BPE of 400 tokens, learnt from the corpus."""
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    run("train-tokenizer", TrainTokenizerRequest(inputs=(corpus,), output=path, vocab_size=400), as_json=False)
    return path


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six real image files, in two folders."""
    return make_album(tmp_path_factory.mktemp("album"))


@pytest.fixture
def tokenize(tmp_path: Path) -> Tokenize:
    """Tokenize files in this process; returns the prefix."""

    def call(*inputs: Path, name: str = "data", **options: object) -> Path:
        settings = {"workers": 1, "append_eod": True, **options}
        request = TokenizeRequest(inputs=inputs, output_prefix=tmp_path / name, **settings)  # type: ignore[arg-type]
        assert run("tokenize", request, as_json=False) == 0
        return tmp_path / name

    return call


@pytest.fixture(autouse=True)
def _forked_programs(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the data are forked: each would import numpy, tokenizers and their like for a second."""
    variables = {**ranks.for_commands(), "FORKED_TOO": "orchestrator.data orchestrator.data.sample_indexing"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Run `python -m orchestrator.data …` in an empty folder."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator.data", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return call


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """torch.distributed with this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
