"""Listening on an address: tried by a command before it starts a server, and done by the server."""

from __future__ import annotations

import errno
import socket

from orchestrator.errors import UserError


def listen(host: str, port: int) -> socket.socket:
    """A socket that connections can be made to. Raises UserError where there cannot be one, as on a port that is taken;
    a command that only wants to know closes it again.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while ")[0]  # Python names the address once more
        hint = "; name another with --port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise UserError(f"cannot listen on {host}, port {port}: {why}{hint}") from error
