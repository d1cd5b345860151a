"""Conversations from JSON lines, in the shapes that instruction data has, with images or without. Light."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from orchestrator.data.chat.images import Content, checked_text, empty_list, listed_images, place_images, read_parts
from orchestrator.data.documents import kind_of

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
_OWN_ROLES: dict[str, Role] = {role: role for role in ROLES}
_SHAREGPT_ROLES: dict[str, Role] = {**_OWN_ROLES, "human": "user", "gpt": "assistant", "observation": "tool"}
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of what the assistant thinks before it speaks, as transformers knows them."""
_CALLS = "tool_calls"
_WAYS_OUT = {
    "function_call": "write it as tool_calls",
    "functions": "write them as tools",
    "chat_template_kwargs": "name a template that does without them",
}
"""What other programs give a model to read or to learn: left out in silence, it would be another conversation."""
_NOTHING: tuple[object, ...] = (None, "", "[]", [], {})


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: Role
    content: str | None
    """What is said; None where a turn has no text. In a conversation with images, `chat.images.IMAGE` stands for
    each."""
    images: tuple[str, ...] = ()
    """Their files, in that order."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The turn as its line has it, without nulls: templates read tool calls, reasoning and the like."""
    counts: bool = True
    """Whether the loss counts it, where the assistant says it."""

    @property
    def text(self) -> str:
        """What is said; empty where a turn has no text."""
        return self.content or ""

    @property
    def reasoning(self) -> object:
        """What the assistant thinks before it speaks; None where nothing is known of it."""
        return next((self.fields[name] for name in REASONING if self.fields.get(name) is not None), None)

    @property
    def has_more(self) -> bool:
        """Whether the assistant says more than its text."""
        return bool(self.fields.get(_CALLS) or self.reasoning)


class Conversation(NamedTuple):
    """The turns of a line, and the tools that the assistant could call, as JSON schemas."""

    messages: tuple[Message, ...]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class _Turn:
    """A turn whose images are not placed yet."""

    role: Role
    content: Content | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True


@dataclass(frozen=True)
class _Shape:
    """How a line can be written: the keys that it is known by, how people see it, and what its turns are."""

    keys: tuple[str, ...]
    written: str
    turns: Callable[[dict[str, Any]], list[_Turn]]


def parse_conversation(line: bytes) -> Conversation:
    """The turns of a line of JSON, the assistant's among them. Raises ValueError with the reason why it is no
    conversation to learn from."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {kind_of(value)}")
    shape = next((each for each in SHAPES if all(value.get(key) is not None for key in each.keys)), None)
    if shape is None:
        keys = ", ".join(list(value)[:8]) or "none"
        known = "; ".join(each.written for each in SHAPES)
        raise ValueError(f"no conversation; keys: {keys}; known are {known}")
    turns = _after_system(value, shape.turns(value))
    _refuse_unread(value, "the line")
    if all(turn.role != "assistant" for turn in turns):
        raise ValueError("no turn of the assistant's, so that there is nothing to learn")
    if not any(turn.counts for turn in turns if turn.role == "assistant"):
        raise ValueError("each turn of the assistant's has weight 0, so that there is nothing to learn")
    placed = place_images([turn.content or () for turn in turns], listed_images(value), empty_list(value))
    messages = [
        Message(turn.role, None if turn.content is None else text, images, turn.fields, turn.counts)
        for turn, (text, images) in zip(turns, placed, strict=True)
    ]
    return Conversation(tuple(messages), _tools(value))


def _messages(key: str, value: dict[str, Any]) -> list[_Turn]:
    turns = value[key]
    if not isinstance(turns, list):
        raise ValueError(f"field {key!r} is not a list but {kind_of(turns)}")
    return [_turn(turn, f"{key}[{number}]") for number, turn in enumerate(turns)]


def _completion(value: dict[str, Any]) -> list[_Turn]:
    """The prompt is given: nothing of it counts, whoever says it."""
    given = [replace(turn, counts=False) for turn in _texts_or_messages(value, "prompt", "user")]
    return [*given, *_texts_or_messages(value, "completion", "assistant")]


def _texts_or_messages(value: dict[str, Any], key: str, role: Role) -> list[_Turn]:
    return _messages(key, value) if isinstance(value[key], list) else [_said(role, value[key], key)]


def _instruction(beside: str, answer: str, value: dict[str, Any]) -> list[_Turn]:
    """An instruction, what it is about below a blank line, and the answer; earlier pairs of both in `history`."""
    earlier = value.get("history") or []
    if not isinstance(earlier, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in earlier):
        raise ValueError("field 'history' is not a list of pairs: [[instruction, answer], …]")
    turns = []
    for number, (question, answered) in enumerate(earlier):
        turns += [_said("user", question, f"history[{number}]"), _said("assistant", answered, f"history[{number}]")]
    asked = [checked_text(value["instruction"], "instruction")]
    if value.get(beside) not in _NOTHING:
        asked.append(checked_text(value[beside], beside))
    return [*turns, _Turn("user", ["\n\n".join(filter(None, asked))]), _said("assistant", value[answer], answer)]


SHAPES = (
    _Shape(("messages",), '{"messages": [{"role", "content"}, …]}', partial(_messages, "messages")),
    _Shape(
        ("conversations",),
        '{"conversations": [{"from", "value"} or {"role", "content"}, …]}',
        partial(_messages, "conversations"),
    ),
    _Shape(("prompt", "completion"), '{"prompt", "completion"}, of texts or messages', _completion),
    _Shape(
        ("instruction", "output"),
        '{"instruction", "input", "output"} (Alpaca)',
        partial(_instruction, "input", "output"),
    ),
    _Shape(
        ("instruction", "response"),
        '{"instruction", "context", "response"} (Dolly)',
        partial(_instruction, "context", "response"),
    ),
)
"""Every shape that a line may have. The first whose keys it has is taken."""


def _said(role: Role, text: object, where: str) -> _Turn:
    return _Turn(role, [checked_text(text, where)])


def _turn(turn: object, where: str) -> _Turn:
    if not isinstance(turn, dict):
        raise ValueError(f"{where} is not an object but {kind_of(turn)}")
    is_sharegpt = "from" in turn and "role" not in turn
    role_key, text_key, roles = ("from", "value", _SHAREGPT_ROLES) if is_sharegpt else ("role", "content", _OWN_ROLES)
    if role_key not in turn:
        raise ValueError(f"{where} has no 'role'; fields: {', '.join(list(turn)[:8]) or 'none'}")
    _refuse_unread(turn, where)
    role = turn[role_key]
    if not isinstance(role, str) or role not in roles:
        raise ValueError(f"{where} has {role_key} {role!r}; known are {', '.join(roles)}")
    weight = turn.get("weight")
    if roles[role] == "assistant" and weight not in (None, 0, 1):
        raise ValueError(
            f"{where} has weight {weight!r}: write 1 where the turn counts in the loss, 0 where it does not"
        )
    fields = {name: value for name, value in turn.items() if value is not None and name not in ("from", "value")}
    if fields.get(_CALLS) is not None:
        fields[_CALLS] = _list_of_objects(fields[_CALLS], f"{where}.{_CALLS}")
    _check_unicode(fields)
    content: Content | None = None
    if turn.get(text_key) is not None or roles[role] != "assistant" or not fields.get(_CALLS):
        if text_key not in turn:
            raise ValueError(f"{where} has no {text_key!r}; fields: {', '.join(list(turn)[:8]) or 'none'}")
        content = _content(turn[text_key], f"{where}.{text_key}", in_parts=not is_sharegpt)
    return _Turn(roles[role], content, fields, weight != 0)


def _content(content: object, where: str, *, in_parts: bool) -> Content:
    return read_parts(content, where) if in_parts and isinstance(content, list) else [checked_text(content, where)]


def _after_system(value: dict[str, Any], turns: list[_Turn]) -> list[_Turn]:
    """The turns, after the system's that stands beside them."""
    if value.get("system") in _NOTHING:
        return turns
    first = _said("system", value["system"], "system")
    if not turns or turns[0].role != "system":
        return [first, *turns]
    if turns[0].content != first.content:
        raise ValueError("field 'system' says other than the system's turn: keep one of them")
    return turns


def _refuse_unread(value: dict[str, Any], where: str) -> None:
    for name, way_out in _WAYS_OUT.items():
        if value.get(name) not in _NOTHING:
            raise ValueError(f"{where} has {name!r}, which is not read: {way_out}")


def _tools(value: dict[str, Any]) -> list[Any] | None:
    given = value.get("tools")
    return None if given in _NOTHING else _list_of_objects(given, "field 'tools'") or None


def _list_of_objects(given: object, where: str) -> list[Any]:
    """Of JSON, or of a string with JSON, which tables have where rows differ."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ValueError(f"{where} is a text that is not JSON: {error}") from error
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError(f"{where} is not a list of objects")
    _check_unicode(given)
    return given


def _check_unicode(value: object) -> None:
    """Raises UnicodeEncodeError for half of a surrogate pair, which JSON can hold and no tokenizer takes."""
    json.dumps(value, ensure_ascii=False).encode()
