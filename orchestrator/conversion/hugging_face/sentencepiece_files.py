"""A SentencePiece model as a tokenizer.json that gives the same ids: Llama 2's kind, a BPE that falls back to bytes.

A model file is protobuf: pieces with their scores, how it was trained, and how text is normalised before. What a BPE of
the `tokenizers` library has in place of scores is an order of merges: a piece's parts are joined the earlier, the
higher its score is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as LibraryTokenizer

from orchestrator.errors import UserError

_SPACE = "▁"
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_OTHER_KINDS = (4, 5)
_BPE = 2
_MODEL_TYPE, _BYTE_FALLBACK, _SPACE_BEHIND = 3, 35, 24
_CHARACTERS, _DUMMY_PREFIX, _FEWER_SPACES, _ESCAPES = 2, 3, 4, 5


@dataclass(frozen=True)
class SentencePieceModel:
    """What a model file says, as far as it matters here. `pieces`: text, score and kind of each, by its id."""

    path: Path
    pieces: tuple[tuple[str, float, int], ...]
    trained: Mapping[int, Any]
    normal: Mapping[int, Any]

    @property
    def unknown(self) -> str | None:
        return next((text for text, _, kind in self.pieces if kind == _UNKNOWN), None)


def read_model(path: Path) -> SentencePieceModel:
    """A model file that the sentencepiece library has read before."""
    pieces, sections = [], {}
    for number, value in _fields(path.read_bytes()):
        if number == _PIECES:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece.get(2, bytes(4)))[0]
            pieces.append((piece[1].decode(), score, piece.get(3, _NORMAL)))
        elif number in (_TRAINER, _NORMALIZER):
            sections[number] = dict(_fields(value))
    return SentencePieceModel(path, tuple(pieces), sections.get(_TRAINER, {}), sections.get(_NORMALIZER, {}))


def to_library(model: SentencePieceModel) -> LibraryTokenizer:
    """The same tokenizer in the library's terms. Raises UserError with the reason where it has none there."""
    if reasons := list(_against(model)):
        raise UserError(
            f"{model.path} is not a SentencePiece model of Llama 2's kind, and only those are exported: "
            f"{'; '.join(reasons)}; export with --no-tokenizer, and add a tokenizer.json yourself",
            code="sentencepiece_not_exportable",
        )
    vocabulary = {text: number for number, (text, _, _) in enumerate(model.pieces)}
    scores = {text: score for text, score, kind in model.pieces if kind == _NORMAL}
    merges = _merges(vocabulary, scores)
    bpe = models.BPE(vocabulary, merges, unk_token=model.unknown, fuse_unk=True, byte_fallback=True)
    library = LibraryTokenizer(bpe)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    library.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = (text for text, _, kind in model.pieces if kind in (_CONTROL, _UNKNOWN))
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return library


def _merges(vocabulary: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    found = [
        (-score, vocabulary[text[:cut]], vocabulary[text[cut:]], (text[:cut], text[cut:]))
        for text, score in scores.items()
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]
    return [pair for *_, pair in sorted(found)]


def _against(model: SentencePieceModel) -> Iterator[str]:
    """Why a model has no counterpart, in words."""
    if model.trained.get(_MODEL_TYPE, 1) != _BPE:
        yield "it is no BPE"
    if not model.trained.get(_BYTE_FALLBACK, 0):
        yield "it does not fall back to bytes"
    if model.trained.get(_SPACE_BEHIND, 0):
        yield "it puts spaces behind words"
    if model.normal.get(_CHARACTERS):
        yield "it normalises characters"
    if not model.normal.get(_DUMMY_PREFIX, 1):
        yield "it puts no space before a text"
    if model.normal.get(_FEWER_SPACES, 1):
        yield "it removes spaces"
    if not model.normal.get(_ESCAPES, 1):
        yield "it does not mark spaces"
    if any(kind in _OTHER_KINDS for _, _, kind in model.pieces):
        yield "it has symbols of its user's, or unused ones"


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, place = _varint(message, place)
        yield number, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
