"""Tokenizers of every kind behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from orchestrator.data.input.optional import optional_module
from orchestrator.data.tokenizers.token_cache import word_encoder
from orchestrator.data.tokenizers.vocabulary import (
    BYTE_LEVEL_EOD,
    BYTE_LEVEL_TOKENS,
    GPT2_EOD,
    MASKED_LM_TOKENS,
    WORDPIECE_BOS,
    WORDPIECE_EOD,
    WORDPIECE_OWN_BOS,
    WORDPIECE_OWN_EOD,
    content_hash,
    is_special_wordpiece,
    lower_cases,
    merges_file,
    own_vocabulary_size,
    special_tokens,
    tokenizer_file,
    wordpiece_vocabulary,
)
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import TokenizerSpec

_SMALL_VOCABULARY = 65500
"""Below this megatron-core stores ids as uint16, else as int32 (its `DType.optimal_dtype`)."""


class Tokenizer(ABC):
    """Text to token ids and back. Special tokens are never added to a text by themselves."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self.spec = spec
        self.own_size = own_vocabulary_size(spec)
        self.vocab_size = self.own_size + spec.vocab_extra_ids
        self.content_hash = content_hash(spec)
        self.dtype: np.dtype[Any] = np.dtype("<u2" if self.vocab_size < _SMALL_VOCABULARY else "<i4")
        self.bos: int | None = None
        self.begins = ""
        """What its own library begins a text with, unless told to add no special tokens: BOS, or nothing."""
        self._eod: int | None = None

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    @abstractmethod
    def token_id(self, token: str) -> int | None:
        """The id of a token of the vocabulary by its text; None when there is none."""

    @abstractmethod
    def tokens(self) -> dict[int, str]:
        """id -> text of every token."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self.encode_batch([text])[0]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a text, and of each with which character it begins and before which it ends. Raises UserError
        when the tokenizer cannot tell."""
        raise UserError(
            f"a {self.spec.type} tokenizer does not report the positions of its tokens in the text, which this chat "
            "template needs; convert it to a tokenizer.json, or use the template plain",
            code="tokenizer_without_positions",
        )

    def encode_to_bytes(self, texts: Sequence[str]) -> list[bytes]:
        """Token ids of each text as they are stored: little-endian `dtype`."""
        return [np.array(ids, dtype=self.dtype).tobytes() for ids in self.encode_batch(texts)]

    @property
    def eod(self) -> int:
        """The id that ends a document. Raises UserError when the tokenizer has none."""
        if self._eod is None:
            raise UserError(
                f"the tokenizer {self.spec.path} has no end-of-document token; "
                "name one as eos_token in a tokenizer_config.json next to it",
                code="no_end_of_document_token",
            )
        return self._eod

    @property
    def end(self) -> int | None:
        """The id that ends a document; None when it has none."""
        return self._eod

    @cached_property
    def pad(self) -> int:
        """The id that fills up a sample. Raises UserError when the tokenizer has none, as do those below."""
        return self._masked_lm_token("pad")

    @cached_property
    def cls(self) -> int:
        """The id that begins a sample."""
        return self._masked_lm_token("cls")

    @cached_property
    def sep(self) -> int:
        """The id that ends a part of a sample."""
        return self._masked_lm_token("sep")

    @cached_property
    def mask(self) -> int:
        """The id in place of what is to be predicted."""
        return self._masked_lm_token("mask")

    def _masked_lm_token(self, name: str) -> int:
        number = self.token_id(MASKED_LM_TOKENS[name])
        if number is None:
            raise UserError(
                f"the tokenizer {self.spec.path} has no {MASKED_LM_TOKENS[name]} token; a masked language model needs "
                f"{', '.join(MASKED_LM_TOKENS.values())}: use a wordpiece vocabulary, or byte_level",
                code="no_masked_lm_token",
            )
        return number

    @cached_property
    def additional_special_tokens_ids(self) -> list[int]:
        """The sentinels that stand for T5's spans, the first span's first; megatron-core's name."""
        if self.spec.vocab_extra_ids:
            return list(range(self.own_size, self.vocab_size))
        own = (self.token_id(f"<extra_id_{number}>") for number in range(self.own_size))
        return [number for number in takewhile(lambda number: number is not None, own) if number is not None]

    @cached_property
    def inv_vocab(self) -> dict[int, str]:
        """id -> text of every token; megatron-core's name. What begins with ## goes on with a word, to its masking:
        only WordPiece's pieces do, so every token of another tokenizer is a word.
        """
        return self.tokens()

    @property
    def unique_identifiers(self) -> OrderedDict[str, str]:
        """What megatron-core's data set cache hashes."""
        return OrderedDict({"class": type(self).__name__, "type": self.spec.type, "content_hash": self.content_hash})


class ByteLevelTokenizer(Tokenizer):
    """Ids 0 to 255 are the bytes of the text in UTF-8; 256 ends a document."""

    def __init__(self, spec: TokenizerSpec) -> None:
        super().__init__(spec)
        self._eod = BYTE_LEVEL_EOD

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        each = [(place, place + 1) for place, character in enumerate(text) for _ in character.encode()]
        return list(text.encode()), each

    def encode_to_bytes(self, texts: Sequence[str]) -> list[bytes]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(self.dtype).tobytes() for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """What is no byte has no text; bytes that are not UTF-8 become the replacement character."""
        return bytes(number for number in ids if number < BYTE_LEVEL_EOD).decode(errors="replace")

    def token_id(self, token: str) -> int | None:
        return BYTE_LEVEL_TOKENS.get(token)

    def tokens(self) -> dict[int, str]:
        """Bytes are shown as Latin-1 does."""
        special = {number: token for token, number in BYTE_LEVEL_TOKENS.items()}
        return {number: special.get(number, chr(number)) for number in range(self.own_size)}


class RustTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, spec: TokenizerSpec, library: LibraryTokenizer, eos: str | None, bos: str | None = None) -> None:
        super().__init__(spec)
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._eod = library.token_to_id(eos) if eos else None
        self.bos = library.token_to_id(bos) if bos else None
        if bos and self.bos in library.encode("").ids[:1]:
            self.begins = bos
        self._words = word_encoder(library.to_str(), self._encode_one)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._library.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_to_bytes(self, texts: Sequence[str]) -> list[bytes]:
        if self._words is None:
            return super().encode_to_bytes(texts)
        return [self._words(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return self._library.decode(list(ids), skip_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        number: int | None = self._library.token_to_id(token)
        return number

    def save(self, path: Path) -> None:
        """Write it as a tokenizer.json."""
        self._library.save(str(path))

    def tokens(self) -> dict[int, str]:
        return {number: token for token, number in sorted(self._library.get_vocab().items(), key=lambda item: item[1])}

    def _encode_one(self, text: str) -> bytes:
        ids = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return np.array(ids, dtype=self.dtype).tobytes()


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, through the `sentencepiece` library."""

    def __init__(self, spec: TokenizerSpec) -> None:
        super().__init__(spec)
        library = optional_module("sentencepiece", "a SentencePiece tokenizer")
        path = tokenizer_file(spec)
        try:
            self._library = library.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise UserError(
                f"tokenizer {path} is not a SentencePiece model: {error}", code="not_a_sentencepiece_model"
            ) from error
        self._eod = self._id(self._library.eos_id())
        self.bos = self._id(self._library.bos_id())

    @staticmethod
    def _id(number: int) -> int | None:
        return number if number >= 0 else None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._library.encode(list(texts), out_type=int, num_threads=1)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._library.decode(list(ids))
        return text

    def token_id(self, token: str) -> int | None:
        number = self._id(self._library.piece_to_id(token))
        return None if number is None or self._library.id_to_piece(number) != token else number

    def tokens(self) -> dict[int, str]:
        return {number: self._library.id_to_piece(number) for number in range(self.own_size)}


def load_tokenizer(spec: TokenizerSpec) -> Tokenizer:
    """The tokenizer that a spec describes.

    Raises UserError when its files are missing or wrong, MissingDependency when its library is not installed.
    """
    if spec.type == "byte_level":
        return ByteLevelTokenizer(spec)
    if spec.type == "sentencepiece":
        return SentencePieceTokenizer(spec)
    path = tokenizer_file(spec)
    if spec.type == "wordpiece":
        library = _wordpiece(path, lower_cases(spec))
        has_own = all(library.token_to_id(token) is not None for token in (WORDPIECE_OWN_BOS, WORDPIECE_OWN_EOD))
        eos, bos = (WORDPIECE_OWN_EOD, WORDPIECE_OWN_BOS) if has_own else (WORDPIECE_EOD, WORDPIECE_BOS)
        return RustTokenizer(spec, library, eos, bos)
    if spec.type == "gpt2_bpe":
        return RustTokenizer(spec, _gpt2(path, merges_file(spec)), GPT2_EOD)
    special = special_tokens(path)
    return RustTokenizer(spec, _tokenizer_json(path), special.eos, special.bos)


def _tokenizer_json(path: Path) -> LibraryTokenizer:
    try:
        return LibraryTokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(
            f"{path} is not a tokenizer.json that the installed tokenizers library reads: {error}",
            code="not_a_tokenizer_json",
        ) from error


def _gpt2(vocabulary: Path, merges: Path) -> LibraryTokenizer:
    try:
        tokenizer = LibraryTokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(
            f"{vocabulary} and {merges} are not the files of a GPT-2 BPE: {error}", code="not_a_gpt2_bpe"
        ) from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if tokenizer.token_to_id(GPT2_EOD) is not None:
        tokenizer.add_special_tokens([GPT2_EOD])
    return tokenizer


def _wordpiece(path: Path, lowercase: bool) -> LibraryTokenizer:
    """BERT's normaliser and its way to cut."""
    vocabulary = wordpiece_vocabulary(path)
    special = [token for token in vocabulary if is_special_wordpiece(token)]
    tokenizer = LibraryTokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([token for token in special if not token.startswith("[unused")])
    return tokenizer
