"""Requests and answers of the HTTP interface: OpenAI's, in so far as they are there, and our own options."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, field_validator, model_validator

from orchestrator.data.chat.conversations import Message, Role
from orchestrator.data.tokenizers import Tokenizer
from orchestrator.errors import UserError
from orchestrator.inference.images import IMAGE
from orchestrator.inference.serving.contents import Content, read_content
from orchestrator.inference.texts import Continuation
from orchestrator.spec.generation import Generation, options_of

_MOST_CHOICES = 128
_SEEDS = 2**31
_INERT: dict[str, tuple[Any, ...]] = {
    **{"presence_penalty": (0, None), "frequency_penalty": (0, None), "logit_bias": ({}, None)},
    **{"best_of": (1, None), "suffix": ("", None), "echo": (False, None), "top_logprobs": (0, None)},
    **{"response_format": ({"type": "text"}, None), "tools": ([], None), "tool_choice": ("none", None)},
}
"""What OpenAI's interface has and this one has not, with the values that ask for nothing."""


class RequestError(Exception):
    """A request that cannot be answered: HTTP status and what is wrong."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class _Asked(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int = Field(default=1, ge=1, le=_MOST_CHOICES)
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None
    # Ours.
    top_k: int | None = None
    top_p_decay: float | None = None
    top_p_bound: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    ignore_end: bool | None = None
    add_bos: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_inert(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, nothing in _INERT.items():
            if name in given and given[name] not in nothing:
                raise ValueError(f"{name} is not supported")
        return {name: value for name, value in given.items() if name not in _INERT}

    def _each(self, max_tokens: int, measures: bool) -> list[Generation]:
        """One for each of `n` choices, with seeds that follow each other."""
        first = secrets.randbelow(_SEEDS - _MOST_CHOICES) if self.seed is None else self.seed
        given = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "top_p_decay": self.top_p_decay,
            "top_p_bound": self.top_p_bound,
            "min_new_tokens": self.min_tokens,
            "repetition_penalty": self.repetition_penalty,
            "num_beams": self.num_beams,
            "length_penalty": self.length_penalty,
            "ignore_end": self.ignore_end,
            "add_bos": self.add_bos,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "max_new_tokens": max_tokens,
            "log_probabilities": measures,
        }
        known = {name: value for name, value in given.items() if value is not None}
        return [options_of({**known, "seed": (first + number) % _SEEDS}) for number in range(self.n)]


class CompletionRequest(_Asked):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] = ""
    max_tokens: int = 16
    logprobs: int | None = Field(default=None, ge=0, le=1)

    @field_validator("prompt")
    @classmethod
    def _some(cls, given: Any) -> Any:
        if isinstance(given, list) and not given:
            raise ValueError("the list is empty: there is no prompt to continue")
        return given

    def options(self) -> list[Generation]:
        """Of each choice of a prompt; they differ in their seed. Raises UserError."""
        return self._each(self.max_tokens, self.logprobs is not None)

    def prompts(self) -> list[str | list[int]]:
        """Texts, or lists of token ids; one at least."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        numbers = [part for part in self.prompt if isinstance(part, int)]
        if numbers:
            return [numbers]
        return [part for part in self.prompt if isinstance(part, str | list)]


class _Turn(BaseModel):
    model_config = ConfigDict(extra="ignore")  # a name beside a role changes nothing

    role: Role
    content: Annotated[Content, PlainValidator(read_content)]


class ChatRequest(_Asked):
    """POST /v1/chat/completions."""

    messages: list[_Turn] = Field(min_length=1)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: Literal[False] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens and max_completion_tokens are the same; give one of them")
        return self

    def options(self, turn_end: str = "") -> list[Generation]:
        """Of each choice; they differ in their seed. A text ends before `turn_end`, too. Raises UserError."""
        each = self._each(self.max_completion_tokens or self.max_tokens or 256, measures=False)
        if not turn_end or self.ignore_end:
            return each
        return [own.model_copy(update={"stop": (*own.stop, turn_end)}) for own in each]

    @property
    def images(self) -> list[bytes]:
        """What is in the files of their images, in their order."""
        return [image for turn in self.messages for image in turn.content.images]

    def prompt(self, chat: Callable[[Sequence[Message]], list[int]]) -> list[int]:
        """The turns as tokens, which `chat` makes, `IMAGE` for each of their images. Raises UserError for turns that
        it does not take."""
        try:
            tokens = chat([Message(turn.role, turn.content.text) for turn in self.messages])
        except ValueError as error:
            raise UserError(str(error)) from error
        if (found := tokens.count(IMAGE)) != len(self.images):
            raise UserError(f"the chat template writes {found} of {len(self.images)} images")
        return tokens


Kind = TypeVar("Kind", CompletionRequest, ChatRequest)


def parsed(kind: type[Kind], given: Any) -> Kind:
    """A request's body. Raises RequestError 400 with everything that is wrong with it."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in found['loc'])}: {found['msg'].removeprefix('Value error, ')}".lstrip(": ")
            for found in error.errors(include_url=False)
        )
        raise RequestError(400, problems) from error


def finish_reason(written: Continuation) -> str:
    """OpenAI's word for why a text has ended."""
    return "length" if written.finish == "length" else "stop"


def usage(read: int, written: Sequence[Continuation]) -> dict[str, int]:
    """Tokens that were read, of each prompt once, and written."""
    new = sum(len(each.tokens) for each in written)
    return {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}


def completion_choice(index: int, text: str, written: Continuation | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """A choice of /v1/completions; `written` is None in a piece that is not the last."""
    choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    if written is not None:
        choice["finish_reason"] = finish_reason(written)
        if written.log_probabilities is not None:
            choice["logprobs"] = {
                "tokens": [tokenizer.decode([token]) for token in written.tokens],
                "token_logprobs": written.log_probabilities,
                "top_logprobs": None,
                "text_offset": None,
            }
    return choice


def envelope(kind: str, model: str, identity: str) -> dict[str, Any]:
    """What every answer has around its choices."""
    return {"id": identity, "object": kind, "created": int(time.time()), "model": model}
