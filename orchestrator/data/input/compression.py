"""Reading compressed files as streams: in bounded memory, and to the end of their data or not at all."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from abc import abstractmethod
from pathlib import Path
from typing import IO, Any

from orchestrator.data.input.optional import optional_module
from orchestrator.files.file_types import HEAD, compression_of

_READ = 1 << 12
"""Compressed bytes that are taken at a time: zstd makes up to 2^15 bytes of one."""
_MADE = 1 << 20
"""Bytes that others are asked for at a time, which make more of one."""
_WINDOW = 1 << 31
"""Bytes of a dictionary or window: more than any program writes unasked."""


def decompressed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    """What a file holds, by the ending of its name or its first bytes; `raw` stands at its beginning. Reading it raises
    EOFError where it is cut off, OSError where it is damaged, and for gzip also what that library raises.
    """
    head = raw.read(HEAD)
    raw.seek(0)
    match compression_of(path, head):
        case ".gz":
            return io.BufferedReader(gzip.GzipFile(fileobj=raw))
        case ".bz2":
            return io.BufferedReader(Bz2Stream(raw))
        case ".xz":
            return io.BufferedReader(XzStream(raw))
        case ".zst":
            return io.BufferedReader(ZstdStream(raw, path))
    return raw


class FrameStream(io.RawIOBase):
    """Decompressed bytes of frames one behind the other. The libraries' own readers take a file that was cut off for a
    whole one, or what stands behind a frame and is none for the end.
    """

    errors: tuple[type[Exception], ...]
    """What a frame raises where it is damaged."""
    padding = b""
    """The byte that may stand between frames."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame = self.new_frame()
        self._begun = False
        self._between = b""
        self._ready = memoryview(b"")

    @abstractmethod
    def new_frame(self) -> Any:
        """A decompressor of the next frame."""

    def decompress(self, data: bytes) -> bytes:
        """What the frame makes of more data, or, of none, of what it still has."""
        made: bytes = self._frame.decompress(data, _MADE)
        return made

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end. Raises EOFError when the last frame is cut off, OSError when it is damaged."""
        while not self._ready:
            data = b""
            if self._frame.eof or getattr(self._frame, "needs_input", True):
                data = self._more()
                if not data and self._begun:
                    raise EOFError("it ends before its data does")
                if not data:
                    return 0
            self._begun = True
            try:
                self._ready = memoryview(self.decompress(data))
            except self.errors as error:
                raise OSError(f"it cannot be decompressed: {error}") from error
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _more(self) -> bytes:
        """Compressed bytes for the frame, a new one where the last has ended; none at the end of the file."""
        data = b""
        if self._frame.eof:
            data = self._frame.unused_data.lstrip(self.padding)
            self._frame, self._begun, self._between = self.new_frame(), False, self.padding
        while not data:
            block = self._raw.read(_READ)
            if not block:
                return b""
            data = block if self._begun else block.lstrip(self._between)
        return data


class Bz2Stream(FrameStream):
    """Of a .bz2 file."""

    errors = (OSError,)

    def new_frame(self) -> bz2.BZ2Decompressor:
        return bz2.BZ2Decompressor()


class XzStream(FrameStream):
    """Of a .xz file."""

    errors = (lzma.LZMAError,)
    padding = b"\0"

    def new_frame(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_WINDOW)


class ZstdStream(FrameStream):
    """Of a .zst file."""

    def __init__(self, raw: IO[bytes], path: Path) -> None:
        self._library = optional_module("zstandard", f"reading {path}")
        self.errors = (self._library.ZstdError,)
        super().__init__(raw)

    def new_frame(self) -> Any:
        return self._library.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()

    def decompress(self, data: bytes) -> bytes:
        made: bytes = self._frame.decompress(data)
        return made
