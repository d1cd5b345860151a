"""Which tokens end a text."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.training import tiny_job
from tokenizers import Tokenizer, models

from orchestrator.inference.model import Model


def ends(folder: Path, generation: str | None) -> tuple[int, ...]:
    """Of a model of 26 tokens, whose tokenizer ends texts with 25, beside these settings."""
    tokenizer = Tokenizer(models.BPE(vocab={chr(ord("a") + number): number for number in range(26)}, merges=[]))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "z"}')
    if generation is not None:
        (folder / "generation_config.json").write_text(generation)
    named = {"type": "huggingface", "path": str(folder / "tokenizer.json")}
    job = tiny_job("chat", model={"vocab_size": 26}, data={"random_tokens": True, "tokenizer": named})
    network: Any = SimpleNamespace(job=job, vocab_size=26)
    commit: Any = None
    return Model(network, commit).ends


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"eos_token_id": [3, 25, 7]}, (25, 3, 7)),
        ({"eos_token_id": 4}, (25, 4)),
        ({"eos_token_id": None, "temperature": 0.6}, (25,)),
        # Of another vocabulary, or nothing that ids are: all of it is left alone, as an export leaves it.
        ({"eos_token_id": [3, 26]}, (25,)),
        ({"eos_token_id": -1}, (25,)),
        ({"eos_token_id": [True, "3"]}, (25,)),
        (["eos_token_id"], (25,)),
    ],
)
def test_settings_that_came_along_end_texts_too(said: Any, expected: tuple[int, ...], tmp_path: Path) -> None:
    assert ends(tmp_path, json.dumps(said)) == expected


@pytest.mark.parametrize("content", [None, "", '{"eos_token_id": [3,', "[" * 100_000])
def test_without_settings_that_can_be_read_the_tokenizer_decides(content: str | None, tmp_path: Path) -> None:
    assert ends(tmp_path, content) == (25,)
