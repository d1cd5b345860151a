"""Requests and answers of the HTTP interface: OpenAI's, in so far as they are there, and our own options."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, FailFast, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails

from orchestrator.data.chat.conversations import Message
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import UserError
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import few, shorten, show
from orchestrator.fields.values import refuse_bool
from orchestrator.inference.images import IMAGE
from orchestrator.inference.serving.contents import Content, read_content
from orchestrator.inference.serving.ignored_fields import Inert, without_inert
from orchestrator.inference.texts import Continuation, finite
from orchestrator.spec.generation import MAX_STOPS, Generation, options_of, unknown_option
from orchestrator.spec.messages.validation import in_words
from orchestrator.spec.schema.shape import Shape, shape_at

_MOST_CHOICES = 128
_MOST_PROMPTS = 4096
_MOST_MESSAGES = 4096
_LONGEST_NAME = 1000
_LONGEST_REFUSAL = 2000
_SEEDS = 2**31


class RequestError(Exception):
    """A request that cannot be answered: HTTP status and what is wrong."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, shorten(message, _LONGEST_REFUSAL)
        super().__init__(self.message)


def _prompts(given: object) -> list[str | list[int]]:
    """Texts, or lists of token ids; one at least. Raises ValueError at the first that is neither: a request may hold a
    million of them.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise ValueError(f"expects text, token ids, or a list of texts or of token ids, not {show(given)}")
    if not given:
        raise ValueError("the list is empty: there is no prompt to continue")
    if len(given) > _MOST_PROMPTS and type(given[0]) is not int:
        raise ValueError(f"{len(given)} prompts; at most {_MOST_PROMPTS}")
    if type(given[0]) is int:
        return [_ids(given, "")]
    if isinstance(given[0], str):
        wrong = next((number for number, each in enumerate(given) if not isinstance(each, str)), None)
        if wrong is not None:
            raise ValueError(f"the first of the list is a text, and number {wrong} is {show(given[wrong])}")
        return given
    return [_ids(each, f"list {number}: ") for number, each in enumerate(given)]


def _ids(given: object, where: str) -> list[int]:
    if not isinstance(given, list):
        raise ValueError(f"{where}expects a list of token ids, not {show(given)}")
    wrong = next((number for number, each in enumerate(given) if type(each) is not int), None)
    if wrong is not None:
        raise ValueError(f"{where}number {wrong} is not a token id: {show(given[wrong])}")
    return given


def _stops(given: object) -> list[str] | None:
    """One text or several. Raises ValueError at the first value that is not text."""
    if given is None or isinstance(given, str):
        return None if given is None else [given]
    if not isinstance(given, list):
        raise ValueError(f"expects text, or a list of texts, not {show(given)}")
    if len(given) > MAX_STOPS:
        raise ValueError(f"{len(given)} texts; at most {MAX_STOPS}")
    for each in given:
        if not isinstance(each, str):
            raise ValueError(f"expects texts, not {show(each)}")
    return given


Whole = Annotated[int, BeforeValidator(refuse_bool)]
Number = Annotated[float, BeforeValidator(refuse_bool)]


class _RequestPart(Section):
    """A part of a request."""

    inert: ClassVar[Inert] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_inert(cls, given: Any) -> Any:
        return without_inert(given, cls.inert) if isinstance(given, dict) else given


class _StreamOptions(_RequestPart):
    inert: ClassVar[Inert] = {"include_obfuscation": (False, None)}

    include_usage: bool = False


class _GenerationRequest(_RequestPart):
    """What both kinds of requests have."""

    inert: ClassVar[Inert] = {
        **{"presence_penalty": (0, None), "frequency_penalty": (0, None), "logit_bias": ({}, None)},
        **{"best_of": (1, None), "suffix": ("", None), "echo": (False, None), "top_logprobs": (0, None)},
        **{"response_format": ({"type": "text"}, None), "tools": ([], None), "tool_choice": ("none", None)},
    }

    # How large numbers may be is said where all that generates has it, in `Generation`.
    model: str | None = Field(default=None, max_length=_LONGEST_NAME)
    temperature: Number | None = None
    top_p: Number | None = None
    n: Whole = Field(default=1, ge=1, le=_MOST_CHOICES)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    stop: Annotated[list[str] | None, PlainValidator(_stops)] = None
    seed: Whole | None = None
    user: str | None = Field(default=None, max_length=_LONGEST_NAME)
    # Ours.
    top_k: Whole | None = None
    top_p_decay: Number | None = None
    top_p_bound: Number | None = None
    min_tokens: Whole | None = None
    repetition_penalty: Number | None = None
    num_beams: Whole | None = None
    length_penalty: Number | None = None
    ignore_end: bool | None = None
    add_bos: bool | None = None

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

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
            "stop": self.stop,
            "max_new_tokens": max_tokens,
            "log_probabilities": measures,
        }
        known = {name: value for name, value in given.items() if value is not None}
        return [options_of({**known, "seed": (first + number) % _SEEDS}) for number in range(self.n)]


class CompletionRequest(_GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)] = Field(
        default_factory=lambda: list[str | list[int]]([""])
    )
    max_tokens: Whole = 16
    logprobs: Whole | None = Field(default=None, ge=0, le=1)

    def options(self) -> list[Generation]:
        """Of each choice of a prompt; they differ in their seed. Raises UserError."""
        return self._each(self.max_tokens, self.logprobs is not None)


class _Turn(_RequestPart):
    inert: ClassVar[Inert] = {
        **{"tool_calls": ([], None), "function_call": (None,), "refusal": ("", None), "audio": (None,)},
        **{"annotations": ([], None), "reasoning_content": ("", None)},
    }

    role: Literal["system", "user", "assistant"]
    content: Annotated[Content, PlainValidator(read_content)]
    name: str | None = Field(default=None, max_length=_LONGEST_NAME)
    """Changes nothing."""


class ChatRequest(_GenerationRequest):
    """POST /v1/chat/completions."""

    inert: ClassVar[Inert] = {**_GenerationRequest.inert, "logprobs": (False, None)}

    messages: Annotated[list[_Turn], FailFast(), Field(min_length=1, max_length=_MOST_MESSAGES)]
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None

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
    def length(self) -> int:
        """Characters of all turns."""
        return sum(len(turn.content.text) for turn in self.messages)

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
            raise UserError(str(error), code="failing_chat_template") from error
        if (found := tokens.count(IMAGE)) != len(self.images):
            raise UserError(f"the chat template writes {found} of {len(self.images)} images", code="images_left_out")
        return tokens


PATHS: dict[str, type[_GenerationRequest]] = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
"""What each path reads."""

Kind = TypeVar("Kind", CompletionRequest, ChatRequest)


def parsed(kind: type[Kind], given: Any) -> Kind:
    """A request's body. Raises RequestError 400 with its first errors."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems = [_sentence(kind, each) for each in error.errors(include_url=False)]
        raise RequestError(400, few(problems)) from error


def _sentence(kind: type[_GenerationRequest], error: ErrorDetails) -> str:
    """One of a request's errors."""
    place = error["loc"]
    if error["type"] != "extra_forbidden":
        return f"{shorten('.'.join(map(str, place))) or 'the request'}: {in_words(error)}"
    *above, name = map(str, place)
    elsewhere = next((path for path, other in PATHS.items() if name in other.model_fields), None)
    if elsewhere is not None and not above:
        return f"{name} belongs to POST {elsewhere}"
    part = shape_at(place[:-1], Shape("section", kind))
    legal = part.section.model_fields if part is not None and part.section is not None else ()
    return unknown_option(name, legal, "".join(f"{each}." for each in above))


def finish_reason(written: Continuation) -> str:
    """OpenAI's word for why a text has ended."""
    return "length" if written.finish == "length" else "stop"


def usage(read: int, written: Sequence[Continuation]) -> dict[str, Any]:
    """Tokens that were read, of each prompt once, and written; drafts of them are told as OpenAI tells predictions."""
    new = sum(len(each.tokens) for each in written)
    counts: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}
    if drafts := sum(each.draft_tokens for each in written):
        accepted = sum(each.accepted_tokens for each in written)
        details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafts - accepted}
        counts["completion_tokens_details"] = details
    return counts


def completion_choice(index: int, text: str, written: Continuation | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """A choice of /v1/completions; `written` is None in a piece that is not the last."""
    choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    if written is not None:
        choice["finish_reason"] = finish_reason(written)
        if written.log_probabilities is not None:
            choice["logprobs"] = {
                "tokens": [tokenizer.decode([token]) for token in written.tokens],
                "token_logprobs": [finite(value) for value in written.log_probabilities],
                "top_logprobs": None,
                "text_offset": None,
            }
    return choice


def envelope(kind: str, model: str, identity: str) -> dict[str, Any]:
    """What every answer has around its choices."""
    return {"id": identity, "object": kind, "created": int(time.time()), "model": model}
