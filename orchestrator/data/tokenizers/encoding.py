"""From a chunk of input to token ids as they are stored: what a worker does."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from orchestrator.data.input.documents import Document, MalformedRecord, read_documents
from orchestrator.data.input.sentences import split_sentences
from orchestrator.data.input.sources import Chunk
from orchestrator.data.tokenizers.tokenizer import Tokenizer

LONGEST_SENTENCE = 512
"""Tokens. megatron-core leaves a document out of its sentence data sets when one sentence has more (helpers.cpp)."""


@dataclass
class EncodedKey:
    """The documents of one key: their ids as stored, one after another, and the lengths in tokens (int32) of their
    sequences: the documents themselves, or their sentences."""

    tokens: bytes = b""
    lengths: bytes = b""
    sentences: bytes = b""
    """How many sentences each document has (int32); empty where a document is one sequence."""
    largest: int = -1
    empty: int = 0
    cut: int = 0
    """Sentences that were stored in pieces, because they are longer than megatron-core takes."""
    counted: int = 0
    """Of conversations, the tokens that the loss counts; of their images, how many there are."""
    unpictured: int = 0
    """Of conversations, those whose text names an image, and that have none."""
    shortened: int = 0
    """Of conversations, those of which the chat template leaves out part of the assistant's turns."""


@dataclass
class EncodedChunk:
    """What became of a chunk: one entry per key, and the records that could not be read."""

    keys: list[EncodedKey]
    malformed: list[MalformedRecord] = field(default_factory=list)


class ChunkEncoder:
    """Encodes chunks with one tokenizer, by document or, with `sentences`, by sentence. Documents without tokens are
    counted and left out."""

    def __init__(self, tokenizer: Tokenizer, keys: tuple[str, ...], append_eod: bool, sentences: bool = False) -> None:
        self._tokenizer = tokenizer
        self._keys = keys
        self._sentences = sentences
        self._eod = np.array([tokenizer.eod], dtype=tokenizer.dtype).tobytes() if append_eod else b""

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        """Encode a chunk."""
        texts: list[tuple[str, ...]] = []
        malformed: list[MalformedRecord] = []
        for block in chunk.blocks:
            for record in read_documents(block, self._keys):
                if isinstance(record, Document):
                    texts.append(record.texts)
                else:
                    malformed.append(record)
        encode = self._encode_sentences if self._sentences else self._encode
        return EncodedChunk([encode([text[i] for text in texts]) for i in range(len(self._keys))], malformed)

    def _encode(self, texts: list[str]) -> EncodedKey:
        documents = [ids + self._eod for ids in self._tokenizer.encode_to_bytes(texts) if ids]
        return self._key(documents, empty=len(texts) - len(documents))

    def _encode_sentences(self, texts: list[str]) -> EncodedKey:
        split = [split_sentences(text) for text in texts]
        encoded = iter(self._tokenizer.encode_to_bytes([sentence for sentences in split for sentence in sentences]))
        size = self._tokenizer.dtype.itemsize * LONGEST_SENTENCE - len(self._eod)
        stored: list[bytes] = []
        counts, cut = array("i"), 0
        for sentences in split:
            before = len(stored)
            for _ in sentences:
                ids = next(encoded)
                stored += [ids[first : first + size] for first in range(0, len(ids), size)]
                cut += len(ids) > size
            if len(stored) > before:
                stored[-1] += self._eod
                counts.append(len(stored) - before)
        key = self._key(stored, empty=len(texts) - len(counts))
        key.sentences, key.cut = counts.tobytes(), cut
        return key

    def _key(self, sequences: list[bytes], empty: int) -> EncodedKey:
        tokens = b"".join(sequences)
        itemsize = self._tokenizer.dtype.itemsize
        lengths = array("i", (len(ids) // itemsize for ids in sequences))
        largest = int(np.frombuffer(tokens, dtype=self._tokenizer.dtype).max()) if tokens else -1
        return EncodedKey(tokens, lengths.tobytes(), largest=largest, empty=empty)
