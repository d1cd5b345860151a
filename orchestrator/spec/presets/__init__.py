"""Model presets: one YAML file for each named architecture."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def preset_names() -> list[str]:
    """The names of the presets, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def has_vocabulary(name: str) -> bool:
    """Whether a preset says how many tokens there are; the others take the tokenizer's."""
    return any(line.startswith("vocab_size:") for line in preset_text(name).splitlines())


def sequence_length(name: str) -> int:
    """Tokens of a sample of a preset."""
    lines = (line.partition(":") for line in preset_text(name).splitlines())
    return next(int(value) for key, _, value in lines if key == "seq_length")


def sees_images(name: str) -> bool:
    """Whether a preset has an encoder of images."""
    return any(line.startswith("vision:") for line in preset_text(name).splitlines())


def preset_text(name: str) -> str:
    """The model section of a preset, as YAML."""
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
