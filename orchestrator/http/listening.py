"""What commands that start a server and the servers themselves share: listening on an address, which a command tries
before and the server does, and the variable by which it is given its token.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from orchestrator.errors import UserError

TOKEN_VARIABLE = "ORCHESTRATOR_TOKEN"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket that connections can be made to. Raises UserError where there cannot be one, as on a port that is taken;
    a command that only wants to know closes it again.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while ")[0]  # Python names the address once more
        hint = "; choose another one with --port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise UserError(f"cannot listen on {host}, port {port}: {why}{hint}", code="cannot_listen") from error
