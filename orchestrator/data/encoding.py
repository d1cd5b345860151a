"""From a chunk of input to token ids as they are stored: what a worker does."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from orchestrator.data.documents import Document, Malformed, read_documents
from orchestrator.data.sources import Chunk
from orchestrator.data.tokenizers import Tokenizer


@dataclass
class EncodedKey:
    """The documents of one key: their ids as stored, one after another, and their lengths in tokens (int32)."""

    tokens: bytes = b""
    lengths: bytes = b""
    largest: int = -1
    empty: int = 0


@dataclass
class EncodedChunk:
    """What became of a chunk: one entry per key, and the records that could not be read."""

    keys: list[EncodedKey]
    malformed: list[Malformed] = field(default_factory=list)


class ChunkEncoder:
    """Encodes chunks with one tokenizer. Documents that hold no tokens are counted and left out."""

    def __init__(self, tokenizer: Tokenizer, keys: tuple[str, ...], append_eod: bool) -> None:
        self._tokenizer = tokenizer
        self._keys = keys
        self._eod = np.array([tokenizer.eod], dtype=tokenizer.dtype).tobytes() if append_eod else b""

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        """Encode a chunk."""
        texts: list[tuple[str, ...]] = []
        malformed: list[Malformed] = []
        for block in chunk.blocks:
            for record in read_documents(block, self._keys):
                if isinstance(record, Document):
                    texts.append(record.texts)
                else:
                    malformed.append(record)
        return EncodedChunk([self._encode([text[i] for text in texts]) for i in range(len(self._keys))], malformed)

    def _encode(self, texts: list[str]) -> EncodedKey:
        documents = [ids + self._eod for ids in self._tokenizer.encode_to_bytes(texts) if ids]
        tokens = b"".join(documents)
        itemsize = self._tokenizer.dtype.itemsize
        lengths = array("i", (len(ids) // itemsize for ids in documents))
        largest = int(np.frombuffer(tokens, dtype=self._tokenizer.dtype).max()) if tokens else -1
        return EncodedKey(tokens, lengths.tobytes(), largest, len(texts) - len(documents))
