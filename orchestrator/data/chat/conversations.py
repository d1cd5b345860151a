"""Conversations from JSON lines, in the shapes that instruction data has, with images or without. Light."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from orchestrator.data.chat.images import checked_text, empty_list, listed_images, place_images
from orchestrator.data.chat.turns import (
    CALLS,
    NOTHING,
    Role,
    Turn,
    field_names,
    list_of_objects,
    read_turns,
    refuse_unread,
    said,
)
from orchestrator.data.input.json_values import kind_of, read_json

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of what the assistant thinks before it speaks, as transformers knows them."""
_SYSTEM = ("system", "system_prompt")
_BESIDE = ("input", "context")
"""What an instruction is about, as Alpaca and Dolly have it."""
_PARTS = (
    *("instruction", "question", "query", "prompt", *_BESIDE, "history"),
    *("output", "answer", "response", "completion"),
)
"""Fields of which each shape without a list of turns reads some."""


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
        return bool(self.fields.get(CALLS) or self.reasoning)


class Conversation(NamedTuple):
    """The turns of a line, and the tools that the assistant could call, as JSON schemas."""

    messages: tuple[Message, ...]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class _Shape:
    """How a line can be written: the keys that it is known by, how people see it, and what its turns are."""

    keys: tuple[str, ...]
    written: str
    turns: Callable[[dict[str, Any]], list[Turn]]


def parse_conversation(line: bytes) -> Conversation:
    """The turns of a line of JSON, the assistant's among them. Raises ValueError with the reason why it is no
    conversation to learn from."""
    value = read_json(line)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {kind_of(value)}")
    refuse_unread(value)
    shape = next((each for each in SHAPES if all(value.get(key) is not None for key in each.keys)), None)
    if shape is None:
        known = "; ".join(each.written for each in SHAPES)
        raise ValueError(f"not a conversation; keys: {field_names(value)}; known: {known}")
    turns = _after_system(value, shape.turns(value))
    if all(turn.role != "assistant" for turn in turns):
        raise ValueError("no turn of the assistant, so there is nothing to learn")
    if not any(turn.counts for turn in turns if turn.role == "assistant"):
        raise ValueError("no turn of the assistant counts in the loss, so there is nothing to learn")
    placed = place_images([turn.content or () for turn in turns], listed_images(value), empty_list(value))
    messages = [
        Message(turn.role, None if turn.content is None else text, images, turn.fields, turn.counts)
        for turn, (text, images) in zip(turns, placed, strict=True)
    ]
    return Conversation(tuple(messages), _tools(value))


def _turns(key: str, value: dict[str, Any]) -> list[Turn]:
    return read_turns(key, value[key])


def _completion(answer: str, value: dict[str, Any]) -> list[Turn]:
    """The prompt is given: nothing of it counts, whoever says it."""
    _refuse_beside(value, "prompt", answer)
    given = [replace(turn, counts=False) for turn in _texts_or_messages(value, "prompt", "user")]
    return [*given, *_texts_or_messages(value, answer, "assistant")]


def _texts_or_messages(value: dict[str, Any], key: str, role: Role) -> list[Turn]:
    return _turns(key, value) if isinstance(value[key], list) else [said(role, value[key], key)]


def _instruction(answer: str, value: dict[str, Any]) -> list[Turn]:
    """An instruction, what it is about below a blank line, and the answer."""
    beside = [name for name in _BESIDE if value.get(name) not in NOTHING]
    if len(beside) > 1:
        raise ValueError(f"it has both {' and '.join(beside)}: write one of them")
    asked = [checked_text(value[name], name) for name in ("instruction", *beside)]
    return [
        *_earlier(value),
        Turn("user", ["\n\n".join(filter(None, asked))]),
        said("assistant", value[answer], answer),
    ]


def _question(question: str, answer: str, value: dict[str, Any]) -> list[Turn]:
    _refuse_beside(value, question, answer, "history")
    return [*_earlier(value), said("user", value[question], question), said("assistant", value[answer], answer)]


def _earlier(value: dict[str, Any]) -> list[Turn]:
    """The pairs of question and answer in `history`."""
    earlier = value.get("history") or []
    if not isinstance(earlier, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in earlier):
        raise ValueError("field 'history' is not a list of pairs: [[instruction, answer], …]")
    turns = []
    for number, (asked, answered) in enumerate(earlier):
        turns += [said("user", asked, f"history[{number}]"), said("assistant", answered, f"history[{number}]")]
    return turns


def _refuse_beside(value: dict[str, Any], *read: str) -> None:
    """Raises ValueError for part of a conversation that nothing says where to put."""
    for name in _PARTS:
        if name not in read and value.get(name) not in NOTHING:
            raise ValueError(
                f"field {name!r} is not read beside {read[0]!r} and {read[1]!r}: write it there, or leave it out"
            )


def _lists(key: str) -> _Shape:
    return _Shape((key,), f'{{"{key}": [{{"role", "content"}} or {{"from", "value"}}, …]}}', partial(_turns, key))


def _pair(question: str, answer: str) -> _Shape:
    return _Shape((question, answer), f'{{"{question}", "{answer}"}}', partial(_question, question, answer))


def _prompted(answer: str) -> _Shape:
    return _Shape(("prompt", answer), f'{{"prompt", "{answer}"}}, of texts or messages', partial(_completion, answer))


SHAPES = (
    _lists("messages"),
    _lists("conversations"),
    _lists("conversation"),
    _prompted("completion"),
    _Shape(("instruction", "output"), '{"instruction", "input", "output"} (Alpaca)', partial(_instruction, "output")),
    _Shape(
        ("instruction", "response"), '{"instruction", "context", "response"} (Dolly)', partial(_instruction, "response")
    ),
    _pair("question", "answer"),
    _pair("question", "response"),
    _pair("query", "response"),
    _prompted("response"),
    _pair("input", "output"),
)
"""Every shape that a line may have. The first whose keys it has is taken."""


def _after_system(value: dict[str, Any], turns: list[Turn]) -> list[Turn]:
    """The turns, after the system's that stands beside them."""
    for name in _SYSTEM:
        if value.get(name) in NOTHING:
            continue
        first = said("system", value[name], name)
        if not turns or turns[0].role != "system":
            turns = [first, *turns]
        elif turns[0].content != first.content:
            raise ValueError(f"field {name!r} differs from the system's turn: keep one of them")
    return turns


def _tools(value: dict[str, Any]) -> list[Any] | None:
    given = value.get("tools")
    return None if given in NOTHING else list_of_objects(given, "field 'tools'") or None
