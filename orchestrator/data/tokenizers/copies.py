"""A tokenizer's files under names that its kind fixes, so that a folder can carry them and be read by itself."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from orchestrator.data.tokenizers.vocabulary import merges_file, tokenizer_file
from orchestrator.spec.sections.data import TokenizerSpec

GENERATION = "generation_config.json"
"""How a Hugging Face model is to generate, by the ids of its tokenizer: which of them end a text."""
_BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", "tokenizer.model", GENERATION),
)
"""What belongs to a tokenizer.json where it lies beside one."""
_MAIN = {
    "huggingface": "tokenizer.json",
    "gpt2_bpe": "vocab.json",
    "wordpiece": "vocab.txt",
    "sentencepiece": "tokenizer.model",
}
_MERGES = "merges.txt"


def files_to_copy(tokenizer: TokenizerSpec) -> dict[str, Path]:
    """Name in the folder that carries it -> where the file is. Raises UserError when its main files are not there."""
    if tokenizer.type == "byte_level":
        return {}
    source = tokenizer_file(tokenizer)
    files = {_MAIN[tokenizer.type]: source}
    if tokenizer.type == "gpt2_bpe":
        files[_MERGES] = merges_file(tokenizer)
    if tokenizer.type == "huggingface" and source.name == "tokenizer.json":  # beside another name they may be another's
        beside = {name: source.with_name(name) for name in _BESIDE}
        files |= {name: path for name, path in beside.items() if path.is_file()}
    return files


def carried(tokenizer: TokenizerSpec, folder: Path, names: Container[str]) -> TokenizerSpec:
    """The same tokenizer read from a folder that holds the files `names`; as it is where the folder lacks it."""
    main = _MAIN.get(tokenizer.type)
    if main is None or main not in names or (tokenizer.type == "gpt2_bpe" and _MERGES not in names):
        return tokenizer
    merges = str(folder / _MERGES) if tokenizer.type == "gpt2_bpe" else None
    return tokenizer.model_copy(update={"path": str(folder / main), "merges": merges})


def came_with(folder: Path, rows: int) -> dict[str, Any]:
    """What the generation_config.json says that came with a tokenizer; nothing where its ids are of another one."""
    try:
        said = json.loads((folder / GENERATION).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    ids = [value for key, value in said.items() if key.endswith("_token_id") and value is not None]
    flat = [number for value in ids for number in (value if isinstance(value, list) else [value])]
    return said if all(type(number) is int and 0 <= number < rows for number in flat) else {}


def ends_beside(tokenizer: TokenizerSpec, rows: int) -> list[int]:
    """The ids below `rows` that end a text by the generation_config.json beside a tokenizer: none where none is there,
    or its ids are of another one. Raises UserError when the tokenizer's own files are not there.
    """
    path = files_to_copy(tokenizer).get(GENERATION)
    said = None if path is None else came_with(path.parent, rows).get("eos_token_id")
    return said if isinstance(said, list) else [] if said is None else [said]
