"""The HTTP server of `serve` and of the dashboard: uvicorn, with limits so that no client can hold it up.

uvicorn waits forever for a request's headers, for its body, and for a client that does not read the answer. Here each
of these has a time limit. Beyond the maximum number of connections, a new one replaces the one that has kept the server
waiting longest.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import termios
from array import array
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""Time limit from a connection's start, or its last answer, until the headers of a request have arrived."""
BODY_SECONDS = 20.0
"""Time limit for each `BODY_SECONDS` x `BYTES_A_SECOND` bytes of a body, and for the rest of it."""
READING_SECONDS = 30.0
"""The same for reading an answer."""
BYTES_A_SECOND = 4096
MOST_CONNECTIONS = 1024
_FILES = 4096
"""File descriptors that are requested, if the machine allows: for connections and for files read meanwhile."""
_ACCEPTED_AT_ONCE = 32
_WAITING_IN_THE_KERNEL = 2048
_LOOK_SECONDS = 1.0


class _Connection(H11Protocol):
    """A connection that is ended when it keeps the server waiting.

    `most`: connections of which there may be so many.
    """

    most = MOST_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own has it
        super().connection_made(transport)
        self._since = self.loop.time()
        """Since when the server has waited: the connection's start, the last answer, or the last read of an answer."""
        self._waited: int | None = 0
        self._received, self._unread = 0, 0
        self._looks = self.loop.call_later(_LOOK_SECONDS, self._look)
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._looks.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def waits(self) -> int | None:
        """What the server waits for: 0 for a request, 1 for the rest of one, 2 for an answer to be read. None where it
        is the server's turn.
        """
        if self.transport.get_write_buffer_size():
            return 2
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete:
            return 0
        return 1 if cycle.more_body and not self.flow.read_paused else None

    def _look(self) -> None:
        """Every second: close the connection if the client has taken too long."""
        now, waits, unread = self.loop.time(), self.waits, self._bytes_unread()
        moved = (False, self._received >= BODY_SECONDS * BYTES_A_SECOND, self._has_read(unread))
        if waits is None or waits != self._waited or moved[waits]:
            self._since, self._received, self._unread, self._waited = now, 0, unread, waits
        if waits is not None and now - self._since > (REQUEST_SECONDS, BODY_SECONDS, READING_SECONDS)[waits]:
            self.transport.abort()
            return
        self._looks = self.loop.call_later(_LOOK_SECONDS, self._look)

    def _bytes_unread(self) -> int:
        """Of an answer: what is here, and what the kernel has not got rid of. It takes megabytes at once, and of a slow
        caller none for a long time.
        """
        if self.transport.is_closing():
            return self.transport.get_write_buffer_size()
        kept = array("i", [0])
        fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kept)
        return self.transport.get_write_buffer_size() + kept[0]

    def _has_read(self, unread: int) -> bool:
        """Whether the client has read enough since `_since`; data written meanwhile does not count against it."""
        self._unread = max(self._unread, unread)
        return self._unread - unread >= READING_SECONDS * BYTES_A_SECOND

    def _make_room(self) -> None:
        """End one that keeps the server waiting for longest, those first that have asked for nothing yet. Where all are
        being answered, uvicorn answers 503 to this one.
        """
        others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
        waiting = [(each.waits, each._since, number) for number, each in enumerate(others) if each.waits is not None]
        if waiting:
            _, _, number = min(waiting)
            chosen = others[number]
            self.connections.discard(chosen)
            chosen.transport.abort()


class Server(uvicorn.Server):
    """Serves an application until `should_exit` is set or a signal arrives."""

    def __init__(self, app: Any, **options: Any) -> None:
        """`options`: more of uvicorn's."""
        most = _connections()
        config = uvicorn.Config(
            app,
            http=type("Connection", (_Connection,), {"most": most}),
            ws="none",
            limit_concurrency=most + 1,
            # asyncio accepts so many in a row before it looks at one of them: no more than there are descriptors for.
            backlog=_ACCEPTED_AT_ONCE,
            # A caller's broken request is no news of the server.
            log_level="error",
            access_log=False,
            server_header=False,
            **options,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn has it; the kernel keeps more connections waiting than are accepted at once."""
        await super().startup(sockets)
        for each in sockets or []:
            each.listen(_WAITING_IN_THE_KERNEL)


def _connections() -> int:
    """How many connections the file descriptors of this process allow; a quarter of these is kept for files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft * 3 // 4)
