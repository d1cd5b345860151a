"""The turns of a conversation, as data sets write them: who says what, and whether it counts in the loss. Light."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.data.chat.images import Content, checked_text, read_parts
from orchestrator.data.input.json_values import kind_of, read_json, shown

Role = Literal["system", "user", "assistant", "tool"]
_NAMES: dict[Role, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "bot", "model"),
    "tool": ("tool", "observation", "function", "tool_response", "function_response"),
}
ROLES: dict[str, Role] = {name: role for role, names in _NAMES.items() for name in names}
"""What data sets call each role."""
CALLS = "tool_calls"
_CALLER = "function_call"
"""LLaMA-Factory's role of an assistant's turn whose text is one call of a function, or a list of them."""
_MARKS = ("weight", "train", "loss")
"""Whether a turn counts in the loss, as OpenAI and Mistral, axolotl, and ms-swift and XTuner have it."""
NOTHING: tuple[object, ...] = (None, "", "[]", [], {})
"""Values of a field that say nothing."""

_COMPARED = "answers cannot be compared: write the one to learn as the last turn, and leave out the others"
_LOSS = "mark what counts in the loss on the assistant's turns, with weight 0 or 1"
_OTHER_MEDIA = "a model reads only text and images: leave out such lines"
_UNREAD: dict[str, tuple[str, tuple[object, ...]]] = {
    "function_call": ("write it as tool_calls", ()),
    "functions": ("write them as tools", ()),
    "chat_template_kwargs": ("use a template that does not need them", ()),
    **dict.fromkeys(("video", "videos", "audio", "audios"), (_OTHER_MEDIA, ())),
    **dict.fromkeys(
        ("chosen", "rejected", "rejected_response", "rejected_messages", "preferred_output", "non_preferred_output"),
        (_COMPARED, ()),
    ),
    **dict.fromkeys(
        ("label", "kto_tag"),
        (
            "true marks a good answer, as in KTO: leave out the others, and rename a field with another meaning",
            (True,),
        ),
    ),
    **dict.fromkeys(("train_on_input", "train_on_inputs"), (_LOSS, (False,))),
    "mask": (_LOSS, ("User", "user")),  # NeMo's: whose turns do not count
    **dict.fromkeys(("masked", "loss_mask", "loss_scale", "train_detail"), (_LOSS, ())),
}
"""What other programs give a model to read or to learn, what to do about it, and values with which it changes nothing.
Left out in silence, it would be another conversation, or another loss."""
_UNREAD_IN_LINE = _UNREAD | dict.fromkeys(_MARKS, (_LOSS, (True,)))


@dataclass(frozen=True)
class Turn:
    """A turn whose images are not placed yet."""

    role: Role
    content: Content | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True


def said(role: Role, text: object, where: str) -> Turn:
    """A turn of nothing but text."""
    return Turn(role, [checked_text(text, where)])


def read_turns(key: str, turns: object) -> list[Turn]:
    """Those of a list, or of a text with one. Raises ValueError with the reason why they are none."""
    if isinstance(turns, str):
        turns = _from_text(turns, f"field {key!r}")
    if not isinstance(turns, list):
        raise ValueError(f"field {key!r} is not a list but {kind_of(turns)}")
    return [_turn(turn, f"{key}[{number}]") for number, turn in enumerate(turns)]


def list_of_objects(given: object, where: str) -> list[Any]:
    """Of JSON, or of a string with JSON, which tables have where rows differ."""
    if isinstance(given, str):
        given = _from_text(given, where)
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError(f"{where} is not a list of objects")
    _check_unicode(given)
    return given


def refuse_unread(value: Mapping[str, Any]) -> None:
    """Raises ValueError for what stands beside the turns and would make them other than they are read."""
    _refuse(value, _UNREAD_IN_LINE, "the line")


def field_names(value: Iterable[str]) -> str:
    """For a message: the first of them."""
    return ", ".join(list(value)[:8]) or "none"


def _turn(turn: object, where: str) -> Turn:
    if not isinstance(turn, dict):
        raise ValueError(f"{where} is not an object but {kind_of(turn)}")
    is_sharegpt = "from" in turn and "role" not in turn
    role_key, text_key = ("from", "value") if is_sharegpt else ("role", "content")
    if role_key not in turn:
        raise ValueError(f"{where} has no 'role'; fields: {field_names(turn)}")
    _refuse(turn, _UNREAD, where)
    name = turn[role_key].lower() if isinstance(turn[role_key], str) else ""
    if name == _CALLER:
        return _turn(_as_calls(turn, text_key, where), where)
    if name not in ROLES:
        known = ", ".join((*ROLES, _CALLER))
        raise ValueError(f"{where} has {role_key} {shown(turn[role_key])}; known are {known}")
    role, counts = ROLES[name], _counts(turn, ROLES[name], where)
    fields = {name: value for name, value in turn.items() if value is not None and name not in ("from", "value")}
    if fields.get(CALLS) is not None:
        fields[CALLS] = list_of_objects(fields[CALLS], f"{where}.{CALLS}")
    _check_unicode(fields)
    content: Content | None = None
    if turn.get(text_key) is not None or role != "assistant" or not fields.get(CALLS):
        if text_key not in turn:
            raise ValueError(f"{where} has no {text_key!r}; fields: {field_names(turn)}")
        content = _content(turn[text_key], f"{where}.{text_key}", in_parts=not is_sharegpt)
    return Turn(role, content, fields, counts)


def _content(content: object, where: str, *, in_parts: bool) -> Content:
    return read_parts(content, where) if in_parts and isinstance(content, list) else [checked_text(content, where)]


def _counts(turn: Mapping[str, Any], role: Role, where: str) -> bool:
    """Whether the assistant's turns in a turn counts in the loss."""
    marks = {name: turn[name] for name in _MARKS if turn.get(name) is not None}
    for name, value in marks.items():
        if value not in (0, 1):
            raise ValueError(
                f"{where} has {name} {shown(value)}: write 1 where the turn counts in the loss, 0 where it does not"
            )
        if value and role != "assistant" and name != "weight":  # OpenAI's weight is of the assistant's turns alone
            raise ValueError(f"{where} has {name} {shown(value)}, but only the assistant's turns count")
    if role == "assistant" and len({bool(value) for value in marks.values()}) > 1:
        raise ValueError(f"{where} has {' and '.join(marks)}, which differ: keep one of them")
    return all(marks.values())


def _as_calls(turn: Mapping[str, Any], text_key: str, where: str) -> dict[str, Any]:
    """A turn whose text is calls of functions, as one that has them in `tool_calls`."""
    calls = turn.get(text_key)
    if isinstance(calls, str):
        calls = _from_text(calls, f"{where}.{text_key}")
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and {"name", "arguments"} <= call.keys() for call in calls):
        raise ValueError(
            f'{where}.{text_key} is not a function call: write {{"name": …, "arguments": …}}, or a list of them'
        )
    rest = {name: value for name, value in turn.items() if name not in ("from", "value", "role", "content")}
    return {**rest, "role": "assistant", CALLS: [{"type": "function", "function": call} for call in calls]}


def _refuse(value: Mapping[str, Any], unread: Mapping[str, tuple[str, tuple[object, ...]]], where: str) -> None:
    for name, (way_out, harmless) in unread.items():
        if (given := value.get(name)) not in NOTHING and given not in harmless:
            raise ValueError(f"{where} has {name!r} ({shown(given)}), which is not read: {way_out}")


def _from_text(text: str, where: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise ValueError(f"{where} is a text that is not JSON: {error}") from error


def _check_unicode(value: object) -> None:
    """Raises UnicodeEncodeError for half of a surrogate pair, which JSON can hold and no tokenizer takes."""
    json.dumps(value, ensure_ascii=False).encode()
