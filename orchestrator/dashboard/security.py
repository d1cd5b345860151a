"""Who may see the pages, and who may act: a token, the name the server was called by, and marks in forms."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from fastapi import HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from orchestrator.dashboard.settings import Settings
from orchestrator.fields.formatting import shorten

TOKEN_PARAMETER = "token"
FORM_MARK = "mark"
_SAID = "said"
_SEAL = "seal"
_MOST_FORM_BYTES = 64 << 10

_HEADERS = {
    # Only files of this server run as scripts: what a run is called cannot become one. Plotly writes styles.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

Next = Callable[[Request], Awaitable[Response]]


async def guarded(settings: Settings, request: Request, call_next: Next) -> Response:
    """Answer a request only where it may be answered; every answer says what browsers may do with it."""
    response = _refusal(settings, request)
    if response is None:
        response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _refusal(settings: Settings, request: Request) -> Response | None:
    """An answer that is no page: the wrong name, no token, or the token taken out of the address."""
    host = _host_of(request)
    if host is None:
        return PlainTextResponse("the Host header names no server\n", status_code=400)
    if settings.hosts is not None and host not in settings.hosts:
        # A page elsewhere may have its own name point here (DNS rebinding), and read what it likes.
        text = f"this dashboard does not have the name {shorten(host)}: add it with --allow-host if it should\n"
        return PlainTextResponse(text, status_code=400)
    if settings.token is None or request.scope["path"] == "/health":
        return None
    shown = request.query_params.get(TOKEN_PARAMETER)
    if shown is not None and _same(shown, settings.token) and request.method == "GET":
        rest = [(key, value) for key, value in request.query_params.multi_items() if key != TOKEN_PARAMETER]
        response = RedirectResponse(_own_address(request, rest), status_code=303)
        # Lax: a link in a chat leads to the page; what acts is a form, which has to bear our mark.
        response.set_cookie(_cookie_of(settings.token), settings.token, httponly=True, samesite="lax")
        return response
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if _same(request.cookies.get(_cookie_of(settings.token), ""), settings.token) or _same(bearer, settings.token):
        return None
    return PlainTextResponse("send the token that the dashboard printed: open its address with ?token=…\n", 401)


def _own_address(request: Request, parameters: Sequence[tuple[str, str]]) -> str:
    """The address that was asked for, with these parameters: a path of this server. One that begins with two slashes,
    of either kind, is to a browser the address of another.
    """
    path = quote("/" + str(request.scope["path"]).lstrip("/\\"), errors="replace")
    return path + (f"?{urlencode(parameters, errors='replace')}" if parameters else "")


def form_mark(settings: Settings) -> str:
    """What a form of ours carries, and what no page elsewhere can know."""
    return hmac.new(settings.secret.encode(), b"form", hashlib.sha256).hexdigest()


def sealed(settings: Settings, text: str) -> str:
    """What to tell a visitor on the next page, as parameters of its address, which nobody else can make up."""
    return urlencode({_SAID: text, _SEAL: _seal(settings, text)})


def unsealed(settings: Settings, request: Request) -> str | None:
    """What this dashboard had to tell, out of an address; None where it holds nothing that is our own."""
    text, seal = request.query_params.get(_SAID), request.query_params.get(_SEAL, "")
    return text if text is not None and _same(seal, _seal(settings, text)) else None


async def checked_form(settings: Settings, request: Request) -> dict[str, str]:
    """The fields of a form that was sent from one of our own pages. Raises HTTPException (403) for any other, and
    where actions are not allowed.
    """
    if not settings.allows_actions:
        raise HTTPException(403, "this dashboard is read-only: start it with --allow-actions to allow actions")
    origin = request.headers.get("origin")
    if origin is not None and _netloc(origin) != request.headers.get("host"):
        raise HTTPException(403, "the form comes from another page")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            raise HTTPException(413, "the form is too long")
    fields = {key: values[-1] for key, values in parse_qs(bytes(body).decode(errors="replace")).items()}
    if any("\0" in text for field in fields.items() for text in field):
        raise HTTPException(400, "the form holds a NUL character, which no command takes")
    if not _same(fields.pop(FORM_MARK, ""), form_mark(settings)):
        raise HTTPException(403, "the form is not from this dashboard, or the dashboard was restarted: reload the page")
    return fields


def _seal(settings: Settings, text: str) -> str:
    return hmac.new(settings.secret.encode(), b"said" + text.encode(errors="replace"), hashlib.sha256).hexdigest()


def _cookie_of(token: str) -> str:
    """The name of the cookie. Browsers keep them by host, whatever the port: two dashboards behind tunnels share one,
    and each has its own token.
    """
    return f"orchestrator_{hashlib.sha256(b'cookie' + token.encode(errors='replace')).hexdigest()[:8]}"


def _host_of(request: Request) -> str | None:
    """The name by which the server was called, empty where none was given; None for what cannot be one."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))
