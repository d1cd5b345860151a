"""The HTTP side: who may ask, how much, and in which words answers go back."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.inference.images import Image
from orchestrator.inference.length_limits import refusal
from orchestrator.inference.model import Model, Prompt
from orchestrator.inference.requests import Request as WriteRequest
from orchestrator.inference.serving.chat_template_choice import Chat
from orchestrator.inference.serving.engine import FAILED, Engine, Ticket
from orchestrator.inference.serving.images import decoded
from orchestrator.inference.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    Kind,
    RequestError,
    completion_choice,
    envelope,
    finish_reason,
    parsed,
    usage,
)
from orchestrator.inference.texts import Continuation, TextDelta
from orchestrator.spec.generation import Generation
from orchestrator.spec.prompts import NO_TEXT, is_text

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::\d*)?")
"""A Host header in lower case: a name or an address, that of IPv6 in brackets, and perhaps a port."""

_CHARACTERS_A_TOKEN = 256
"""Longer than any token, except the few for long runs of blanks."""
_MOST_VALUES = 1_000_000
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""A JSON escape of half a surrogate pair; most belong to a complete pair."""
_READERS = ThreadPoolExecutor(2, "requests")
"""Requests that are parsed at a time: parsing holds Python's global interpreter lock."""

_PATHS = "GET /health, GET /v1/models, POST /v1/completions, POST /v1/chat/completions"


@dataclass(frozen=True)
class Limits:
    """What a server answers."""

    token: str | None
    """What a caller must show; None for anyone who reaches it."""
    max_bytes: int
    """Of a request's body."""
    is_loopback: bool
    """Only this machine can reach it; a page in a browser there must not, under a name of its own."""


@dataclass(frozen=True)
class ServedModel:
    """A model as callers see it."""

    name: str
    model: Model
    engine: Engine
    chat: Chat | None
    """How conversations are written; None where there is no chat template."""
    longest: int
    """Tokens of a prompt and what is written after it."""
    created: int


def build_app(served: ServedModel, limits: Limits) -> FastAPI:
    """The application."""
    # A redirect would name whatever a caller calls the server.
    app = FastAPI(title="orchestrator", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Any]) -> Response:
        try:
            _admit(request, limits)
        except RequestError as error:
            return _refusal(error)
        answer: Response = await call_next(request)
        return answer

    _answer_errors(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": served.name, "object": "model", "created": served.created, "owned_by": "orchestrator"}
        return {"object": "list", "data": [entry]}

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        asked = await _asked(CompletionRequest, request, limits)
        _check_name(asked.model, served)
        options, prompts = asked.options(), asked.prompt
        _check_length(max(map(len, prompts)), served)
        requests = await requests_of(served, len(prompts), lambda: prompts, options)
        call = _Call(served, "text_completion", requests, asked.n, _as_completion(served))
        return await call.answer(asked.stream, asked.tells_usage)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await _asked(ChatRequest, request, limits)
        _check_name(asked.model, served)
        if served.chat is None:
            raise RequestError(400, "the tokenizer has no chat template: this model supports only /v1/completions")
        written, images = served.chat, asked.images
        _check_room(len(images), served)
        _check_length(asked.length, served)
        requests = await requests_of(
            served, 1, lambda: [asked.prompt(written)], asked.options(written.turn_end), [images]
        )
        call = _Call(served, "chat.completion", requests, asked.n, _as_chat)
        return await call.answer(asked.stream, asked.tells_usage)

    return app


def _answer_errors(app: FastAPI) -> None:
    """Errors as answers."""

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return _refusal(error)

    @app.exception_handler(UserError)
    async def wrong(request: Request, error: UserError) -> Response:
        return _refusal(RequestError(400, str(error)))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        """What the framework refuses: another path, another method."""
        asked = shorten(f"{request.method} {request.scope['path']}")
        allowed = (error.headers or {}).get("Allow")
        said = {404: f"{asked} does not exist: {_PATHS}", 405: f"{asked} is not supported, but {allowed} is"}
        answer = _refusal(RequestError(error.status_code, said.get(error.status_code, str(error.detail))))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return _refusal(RequestError(400, "the caller has hung up"))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        """The error is in the log, with its traceback."""
        return _refusal(RequestError(500, FAILED))


def _admit(request: Request, limits: Limits) -> None:
    """Raises RequestError for a caller who may not ask."""
    host = request.headers.get("host", "")
    if limits.is_loopback and not _is_own_name(host):
        raise RequestError(403, f"this server answers to localhost, 127.0.0.1 and [::1], not to {shorten(host)}")
    if limits.token is None or request.scope["path"] == "/health":
        return
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    # Compared in a time that does not tell how much of it is right.
    if scheme.lower() != "bearer" or not hmac.compare_digest(shown.encode(), limits.token.encode()):
        raise RequestError(401, "a token is needed: Authorization: Bearer TOKEN")


def _is_own_name(host: str) -> bool:
    """Whether a Host header names this machine to itself, in a way that no name server can have a part in."""
    found = _HOST.fullmatch(host.lower())
    if found is None:
        return False
    name = found["six"] or found["name"]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


async def _asked(kind: type[Kind], request: Request, limits: Limits) -> Kind:
    """What a request says. Raises RequestError when it is too large or is none. Read in a thread: meanwhile others are
    answered.
    """
    content = await _body(request, limits)
    return await asyncio.get_running_loop().run_in_executor(_READERS, lambda: parsed(kind, _json(content)))


async def _body(request: Request, limits: Limits) -> bytearray:
    """The body. Raises RequestError if it is too large or not declared as JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "send JSON, with Content-Type: application/json")
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > limits.max_bytes:
            way_out = "send less, or start the server with a larger --max-request-kb"
            raise RequestError(413, f"a request has at most {limits.max_bytes} bytes: {way_out}")
    return content


def _json(content: bytearray) -> Any:
    """Raises RequestError for invalid JSON, or for so many values that parsing them would take long."""
    if content.count(b",") > _MOST_VALUES:
        raise RequestError(400, f"the request holds more than {_MOST_VALUES} commas: send fewer values")
    try:
        # Of bytes json.loads takes other encodings too, and halves of surrogate pairs as they are.
        given = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the request is not JSON: {error}") from error
    # Anywhere: what is wrong with a request is told in its own words, too.
    if _SURROGATE.search(content) and not is_text(json.dumps(given, ensure_ascii=False)):
        raise RequestError(400, f"the request {NO_TEXT}")
    return given


def _check_name(name: str | None, served: ServedModel) -> None:
    if name not in (None, served.name):
        raise RequestError(404, f"there is no model {shorten(name or '')}; this is {served.name}")


def _check_room(images: int, served: ServedModel) -> None:
    """Raises RequestError for more images than a prompt has tokens for, before one of them is read."""
    model = served.model.job.model
    if model.has_vision and (tokens := images * model.image_encoder.least_tokens) > served.longest:
        raise RequestError(400, f"{images} images take {tokens} tokens; a prompt has at most {served.longest}")


def _check_length(length: int, served: ServedModel) -> None:
    """Raises RequestError for a text, or a list of ids, that is longer than a prompt can be, before it is tokenized."""
    most = served.longest * _CHARACTERS_A_TOKEN
    if length > most:
        raise RequestError(
            400, f"the prompt has {length} characters or ids; at most {most} are allowed, for {served.longest} tokens"
        )


def _refusal(error: RequestError) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return JSONResponse(_record(error), status_code=error.status, headers=headers)


def _record(error: RequestError) -> dict[str, Any]:
    kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
    kind = kinds.get(error.status, "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "code": error.status}}


Choice = Callable[[int, str, Continuation | None, bool], dict[str, Any]]
"""From a choice's index, a text, the whole with the last piece, and whether it is a piece: the choice in an answer."""


def _as_completion(served: ServedModel) -> Choice:
    def choice(index: int, text: str, written: Continuation | None, is_piece: bool) -> dict[str, Any]:
        return completion_choice(index, text, written, served.model.tokenizer)

    return choice


def _as_chat(index: int, text: str, written: Continuation | None, is_piece: bool) -> dict[str, Any]:
    reason = finish_reason(written) if written is not None else None
    said = {"delta" if is_piece else "message": {"role": "assistant", "content": text}}
    return {"index": index, **said, "finish_reason": reason, "logprobs": None}


async def requests_of(
    served: ServedModel,
    count: int,
    prompts: Callable[[], Sequence[Prompt]],
    options: Sequence[Generation],
    images: Sequence[Sequence[bytes]] | None = None,
) -> list[WriteRequest]:
    """Requests for `count` prompts, those of one prompt together: one for each of `options`, which differ in seed.

    Nothing is made of a call that is too large, or one too many. Tokenizing and reading images keep nobody else
    waiting. Raises UserError and RequestError.
    """
    model = served.model.job.model
    with served.engine.place(count * sum(each.num_beams for each in options)):
        given: Sequence[Sequence[Image]] | None = images
        if images is not None and model.has_vision:
            given = [await decoded(own, model.image_encoder, served.longest) for own in images]
        encoded = await asyncio.to_thread(lambda: served.model.requests(prompts(), options[0], given))
    # The place is given up here and taken again by the call: nobody else comes between, as nothing is awaited.
    each = [(request, own) for request in encoded for own in options]
    return [replace(request, number=number, options=own) for number, (request, own) in enumerate(each)]


def _event(record: Mapping[str, Any]) -> str:
    """One event of a stream. ASCII, as some callers end a line at characters that JSON leaves as they are."""
    return f"data: {json.dumps(record, separators=(',', ':'))}\n\n"


class _Call:
    """One call on its way through the engine."""

    def __init__(
        self,
        served: ServedModel,
        kind: Literal["text_completion", "chat.completion"],
        requests: list[WriteRequest],
        choices: int,
        choice: Choice,
    ) -> None:
        """`choices`: how many there are of each prompt, one after the other. Raises RequestError."""
        self._served, self._kind, self._choice, self._requests = served, kind, choice, requests
        self._identity = f"{'cmpl' if kind == 'text_completion' else 'chatcmpl'}-{uuid.uuid4().hex}"
        longest = max(self._requests, key=lambda request: len(request.tokens) + request.options.max_new_tokens)
        prompt, new, most = len(longest.tokens), longest.options.max_new_tokens, served.longest
        if said := refusal(prompt, new, most, f"this server takes {most} for both together"):
            raise RequestError(400, f"{said}, or start the server with --max-length {prompt + new}")
        self._read = sum(len(request.tokens) for request in self._requests[::choices])

    async def answer(self, stream: bool, tells_usage: bool) -> Response:
        ticket = Ticket(self._requests, asyncio.get_running_loop())
        self._served.engine.submit(ticket)
        if stream:
            return StreamingResponse(self._events(ticket, tells_usage), media_type="text/event-stream")
        done: dict[int, Continuation] = {}
        async for piece in self._pieces(ticket):
            if piece.done is not None:
                done[piece.number] = piece.done
        whole = [done[index] for index in range(len(self._requests))]
        choices = [self._choice(index, each.text, each, False) for index, each in enumerate(whole)]
        record = envelope(self._kind, self._served.name, self._identity)
        return JSONResponse({**record, "choices": choices, "usage": usage(self._read, whole)})

    async def _pieces(self, ticket: Ticket) -> AsyncIterator[TextDelta]:
        left = len(self._requests)
        while left:
            piece = await ticket.pieces.get()
            if isinstance(piece, RequestError):
                raise piece
            left -= piece.done is not None
            yield piece

    async def _events(self, ticket: Ticket, tells_usage: bool) -> AsyncIterator[str]:
        kind = f"{self._kind}.chunk" if self._kind == "chat.completion" else self._kind
        written = []
        try:
            async for piece in self._pieces(ticket):
                if piece.done is not None:
                    written.append(piece.done)
                elif not piece.text:
                    continue
                choice = self._choice(piece.number, piece.text, piece.done, True)
                record = envelope(kind, self._served.name, self._identity)
                yield _event({**record, "choices": [choice]})
        except RequestError as error:  # the status has been sent
            yield _event(_record(error))
            return
        if tells_usage:
            record = envelope(kind, self._served.name, self._identity)
            yield _event({**record, "choices": [], "usage": usage(self._read, written)})
        yield "data: [DONE]\n\n"
