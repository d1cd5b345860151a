"""What commands that answer over HTTP share: who reaches them, and the token that visitors show."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.errors import UserError
from orchestrator.http.listening import TOKEN_VARIABLE

_LEAST_TOKEN = 16

Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; any other than this machine's own needs a token.")
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 selects a free one.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar=TOKEN_VARIABLE, help="Token that clients must send (Authorization: Bearer TOKEN)."),
]


def check_token(token: str | None) -> None:
    """Raises UserError for a token that is easily guessed, or that no header can hold."""
    if token is not None and (len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(f"a token has at least {_LEAST_TOKEN} characters, printable ASCII", code="malformed_token")
