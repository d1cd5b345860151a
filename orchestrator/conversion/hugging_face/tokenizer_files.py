"""A job's tokenizer as the files that transformers' AutoTokenizer loads."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from orchestrator.conversion.hugging_face.sentencepiece_files import read_model, to_library
from orchestrator.data.tokenizers.copies import files_to_copy
from orchestrator.data.tokenizers.tokenizer import RustTokenizer, SentencePieceTokenizer, load_tokenizer
from orchestrator.data.tokenizers.vocabulary import (
    BYTE_LEVEL_EOD,
    BYTE_LEVEL_TOKENS,
    GPT2_EOD,
    special_tokens,
    tokenizer_file,
)
from orchestrator.spec.sections.data import TokenizerSpec

_OF_BERT = {
    **{"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"},
    **{"unk_token": "[UNK]", "eos_token": "[SEP]"},
}
_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


@dataclass(frozen=True)
class SpecialIds:
    """For config.json; None where a tokenizer has none."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None

    @property
    def record(self) -> dict[str, int | None]:
        return {"bos_token_id": self.bos, "eos_token_id": self.eos}

    @property
    def of_decoder(self) -> dict[str, int]:
        """What a decoder beside an encoder begins with, as `data.families.t5` has it, and padding; T5's own where that
        is not known."""
        known = [number for number in (self.bos, self.pad, self.eos) if number is not None]
        return {"decoder_start_token_id": (known or [0])[0], "pad_token_id": self.pad or 0}


def write_tokenizer(spec: TokenizerSpec, folder: Path) -> SpecialIds:
    """Write the files. Raises UserError when its own cannot be read, or are of a kind that is not written."""
    if spec.type == "byte_level":
        byte_level_library().save(str(folder / "tokenizer.json"))
        _write_config(folder, eos_token=GPT2_EOD, pad_token="[PAD]")
        return SpecialIds(eos=BYTE_LEVEL_EOD, pad=BYTE_LEVEL_TOKENS["[PAD]"])
    tokenizer = load_tokenizer(spec)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _write_sentencepiece(tokenizer, tokenizer_file(spec), folder)
    assert isinstance(tokenizer, RustTokenizer)
    names: dict[str, str] = {}
    if spec.type == "huggingface":
        for name, path in files_to_copy(spec).items():
            shutil.copyfile(path, folder / name)
        special = special_tokens(tokenizer_file(spec))
        names = {"eos_token": special.eos or "", "bos_token": special.bos or ""}
    else:
        tokenizer.save(folder / "tokenizer.json")
        names = {"eos_token": GPT2_EOD} if spec.type == "gpt2_bpe" else _OF_BERT
    if not (folder / "tokenizer_config.json").exists():
        _write_config(folder, **{kind: token for kind, token in names.items() if token})
    pads = (tokenizer.token_id(name) for name in ("[PAD]", "<pad>"))
    return SpecialIds(tokenizer.bos, tokenizer.end, next((number for number in pads if number is not None), None))


def _write_sentencepiece(tokenizer: SentencePieceTokenizer, path: Path, folder: Path) -> SpecialIds:
    model = read_model(path)
    to_library(model).save(str(folder / "tokenizer.json"))
    shutil.copyfile(path, folder / "tokenizer.model")
    special = SpecialIds(tokenizer.bos, tokenizer.end)
    ids = {"bos_token": special.bos, "eos_token": special.eos}
    tokens = {kind: model.pieces[number][0] for kind, number in ids.items() if number is not None}
    _write_config(folder, **tokens, **({"unk_token": model.unknown} if model.unknown else {}))
    return special


def _write_config(folder: Path, **tokens: str) -> None:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **tokens,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def byte_level_library() -> LibraryTokenizer:
    """The tokenizer `byte_level` in the library's own terms: each byte has a character, which has the byte's id."""
    shifted = (byte for byte in range(256) if byte not in _PRINTABLE)
    characters = {byte: chr(byte) for byte in _PRINTABLE} | {
        byte: chr(256 + number) for number, byte in enumerate(shifted)
    }
    tokenizer = LibraryTokenizer(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (GPT2_EOD, *BYTE_LEVEL_TOKENS)])
    return tokenizer
