"""Conversations from JSON lines, in the shapes that instruction data has, with images or without. Light."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.data.chat.images import Content, checked_text, empty_list, listed_images, place_images, read_parts
from orchestrator.data.documents import kind_of

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)
_OWN_ROLES: dict[str, Role] = {role: role for role in ROLES}
_SHAREGPT_ROLES: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}
_SHAPES = (
    '{"messages": [{"role", "content"}, …]}, {"conversations": [{"from", "value"}, …]} or {"prompt", "completion"}'
)
_BESIDE_TURNS = ("system", "tools", "functions")
_BESIDE_TEXT = {
    "tool_calls": "calls tools",
    "function_call": "calls tools",
    "reasoning_content": "has a reasoning beside its text",
    "thinking": "has a reasoning beside its text",
}
"""What other programs give a model to read or to learn: left out in silence, it would be another conversation."""
_NOTHING: tuple[object, ...] = (None, "", "[]", [], {})


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: Role
    content: str
    """What is said. In a conversation with images, `chat.images.IMAGE` stands for each."""
    images: tuple[str, ...] = ()
    """Their files, in that order."""


def parse_conversation(line: bytes) -> tuple[Message, ...]:
    """The turns of a line of JSON, the assistant's among them. Raises ValueError with the reason why it is no
    conversation to learn from."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {kind_of(value)}")
    if "messages" in value:
        turns = _turns(value, "messages", "role", "content", _OWN_ROLES)
    elif "conversations" in value:
        turns = _turns(value, "conversations", "from", "value", _SHAREGPT_ROLES)
    elif "prompt" in value and "completion" in value:
        turns = [
            ("user", [checked_text(value["prompt"], "prompt")]),
            ("assistant", [checked_text(value["completion"], "completion")]),
        ]
    else:
        fields = ", ".join(list(value)[:8]) or "none"
        raise ValueError(f"no conversation; fields: {fields}; wanted is {_SHAPES}")
    if all(role != "assistant" for role, _ in turns):
        raise ValueError("no turn of the assistant's, so that there is nothing to learn")
    for name in _BESIDE_TURNS:
        if value.get(name) not in _NOTHING and (name, turns[0][0]) != ("system", "system"):
            way_out = "make it the first turn" if name == "system" else "take it out, or leave the line out"
            raise ValueError(f"field {name!r} beside the turns is not read: {way_out}")
    placed = place_images([content for _, content in turns], listed_images(value), empty_list(value))
    return tuple(Message(role, *said) for (role, _), said in zip(turns, placed, strict=True))


def _turns(
    value: dict[str, object], key: str, role_key: str, text_key: str, roles: dict[str, Role]
) -> list[tuple[Role, Content]]:
    turns = value[key]
    if not isinstance(turns, list):
        raise ValueError(f"field {key!r} is not a list but {kind_of(turns)}")
    read: list[tuple[Role, Content]] = []
    for number, turn in enumerate(turns):
        where = f"{key}[{number}]"
        if not isinstance(turn, dict):
            raise ValueError(f"{where} is not an object but {kind_of(turn)}")
        for name in (role_key, text_key):
            if name not in turn:
                raise ValueError(f"{where} has no {name!r}; fields: {', '.join(list(turn)[:8]) or 'none'}")
        for name, does in _BESIDE_TEXT.items():
            if turn.get(name) not in _NOTHING:
                raise ValueError(f"{where} {does} ({name}), which this version does not read")
        role = turn[role_key]
        if not isinstance(role, str) or role not in roles:
            raise ValueError(f"{where} has {role_key} {role!r}; known are {', '.join(roles)}")
        if roles[role] == "assistant" and (weight := turn.get("weight")) not in (None, 1):
            raise ValueError(f"{where} has weight {weight!r}, and all that the assistant says counts alike")
        content, place = turn[text_key], f"{where}.{text_key}"
        in_parts = text_key == "content" and isinstance(content, list)
        read.append((roles[role], read_parts(content, place) if in_parts else [checked_text(content, place)]))
    return read
