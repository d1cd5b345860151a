"""A tokenizer's files under names that its kind fixes, so that a folder can carry them and be read by itself."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from orchestrator.data.vocabulary import merges_file, tokenizer_file
from orchestrator.spec.data import TokenizerSpec

GENERATION = "generation_config.json"
"""How a Hugging Face model is to generate, by the ids of its tokenizer: which of them end a text."""
_BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "merges.txt", "tokenizer.model", GENERATION),
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
