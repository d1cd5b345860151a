"""What kind of tokenizer a path means, where nobody says it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.spec.yaml.reader import UNREADABLE, LocatedValue

TYPES_BY_PATH = (
    "huggingface (tokenizer.json or its folder), sentencepiece (.model), wordpiece (vocab.txt) or gpt2_bpe (vocab.json)"
)
_ENDINGS = {
    "tokenizer.json": "huggingface",
    ".model": "sentencepiece",
    "vocab.txt": "wordpiece",
    "vocab.json": "gpt2_bpe",
}


_BEGINNING = 4096
"""Bytes of a file in which the tokenizers library has written what it writes first."""


def type_of_path(path: str) -> str | None:
    """The type of the tokenizer at a path: by its name, a folder by the tokenizer.json in it, and a tokenizer.json of
    another name by how it begins; None when unclear.
    """
    for ending, kind in _ENDINGS.items():
        if path.endswith(ending):
            return kind
    if path.endswith(".json") and _is_of_tokenizers(Path(path)):
        return "huggingface"
    return "huggingface" if (Path(path) / "tokenizer.json").is_file() else None


def _is_of_tokenizers(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            return b'"added_tokens"' in file.read(_BEGINNING)
    except OSError:  # whoever reads all of it says why
        return False


def with_tokenizer_type(root: LocatedValue) -> LocatedValue:
    """A job with `data.tokenizer.type` at the place of its path, where only a path is written that tells it."""
    data = _entry(root, "data")
    tokenizer = _entry(data, "tokenizer")
    path, kind = _entry(tokenizer, "path"), _entry(tokenizer, "type")
    if path is None or (kind is not None and kind.content is not None) or path.content is UNREADABLE:
        return root
    text = path.text if path.text is not None else path.content
    found = type_of_path(text) if isinstance(text, str) and "\0" not in text else None
    if found is None:
        return root
    told = LocatedValue(found, path.location)
    return _with(root, "data", _with(data, "tokenizer", _with(tokenizer, "type", told)))


def _entry(written: LocatedValue | None, key: str) -> LocatedValue | None:
    content = written.content if written is not None else None
    return content.get(key) if isinstance(content, dict) else None


def _with(written: LocatedValue | None, key: str, value: LocatedValue) -> LocatedValue:
    assert written is not None
    assert isinstance(written.content, dict), "it holds the path of the tokenizer"
    return written._replace(content={**written.content, key: value})
