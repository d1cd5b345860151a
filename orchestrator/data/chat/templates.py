"""Chat templates: from the turns of a conversation to text, and which of it the assistant says.

A template is the tokenizer's own or a person's, in Jinja as transformers reads it, or one that is built in. It runs in
a sandbox, within bounds of time and memory. Data are made for a day that stays the same however long that takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orchestrator.data.chat.assistant_spans import SpanFinder
from orchestrator.data.chat.conversations import Message
from orchestrator.data.chat.images import IMAGE
from orchestrator.data.chat.parts import images_found, to_parts
from orchestrator.data.chat.rendering import BEGIN, END, BoundsError, compiled, rendered
from orchestrator.errors import UserError

_PROBE = "answer"
_PROBED = (Message("user", "question"), Message("assistant", _PROBE))


def _calling(function: str, result: str) -> Sequence[Message]:
    call = {"id": "123456789", "type": "function", "function": {"name": function, "arguments": {}}}
    called = Message("assistant", "", fields={"tool_calls": [call]})
    told = Message("tool", result, fields={"name": function, "tool_call_id": "123456789"})
    return Message("user", "question"), called, told, Message("assistant", "said")


def _tool(function: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": function, "description": "", "parameters": parameters}}


_THOUGHT = Message("assistant", "said", fields={"reasoning_content": _PROBE})
_PROBES: dict[str, tuple[Sequence[Message], list[Any] | None]] = {
    "tools": ((Message("user", "question"), Message("assistant", "said")), [_tool(_PROBE)]),
    "tool_calls": (_calling(_PROBE, "done"), [_tool("other")]),
    "tool": (_calling("other", _PROBE), [_tool("other")]),
    "reasoning_content": ((Message("user", "question"), _THOUGHT), None),
}
"""For each thing that a conversation may have beside its text, one in which `_PROBE` is nothing else."""


@dataclass(frozen=True)
class RenderedText:
    """Text, and whether its tokens count. Without text it is the token that ends a document."""

    text: str | None
    counts: bool


class ChatTemplate(Protocol):
    """How conversations become text."""

    name: str
    """Where it is from."""
    content: str
    """What decides its output."""
    is_whole: bool
    """Whether the text of all pieces is tokenized as one."""
    ends_without_answer: bool
    """Whether nothing that counts ends the assistant's turns, so that a model never learns to stop."""

    def __call__(self, messages: Sequence[Message], tools: list[Any] | None = None) -> list[RenderedText]:
        """The text of a conversation. Raises ValueError for one that the template does not take, or of which it leaves
        something out."""
        ...

    def prompt(self, messages: Sequence[Message]) -> list[RenderedText]:
        """What the assistant's next turn goes on from. Raises ValueError for a conversation that it does not take."""
        ...


class PlainTemplate:
    """Role names in plain text, for tokenizers that know nothing of turns; the assistant's end with the token that ends
    a document."""

    name = content = "plain"
    is_whole = ends_without_answer = False

    def __call__(self, messages: Sequence[Message], tools: list[Any] | None = None) -> list[RenderedText]:
        if tools or any(message.has_more for message in messages):
            raise ValueError("the chat template plain writes neither tools nor reasoning; name another")
        pieces = []
        for number, message in enumerate(messages):
            gap = "\n\n" if number else ""
            pieces.append(RenderedText(f"{gap}{message.role.capitalize()}:\n", False))
            says = message.role == "assistant"
            pieces.append(RenderedText(message.text, says and message.counts))
            if says:
                pieces.append(RenderedText(None, message.counts))
        return pieces

    def prompt(self, messages: Sequence[Message]) -> list[RenderedText]:
        *pieces, _, _ = self([*messages, Message("assistant", "")])  # the empty text of that turn, and its end
        return pieces


def reads_day(template: ChatTemplate) -> bool:
    """Whether what a template writes depends on the day."""
    return "strftime_now" in template.content


CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{{- '\\n' }}
{%- else %}
{{- message['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


VICUNA = """\
{{- begin }}
{%- for message in messages %}
{%- if message['role'] == 'system' %}{{ message['content'] + ' ' }}
{%- elif message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}
{%- elif message['role'] == 'assistant' %}{{ 'ASSISTANT:' }}
{%- generation %}{{ ' ' + message['content'] + end }}{% endgeneration %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}
"""
"""Vicuna's conversations, which are LLaVA 1.5's. `begin` and `end`: the tokenizer's own of a text and of a document."""


class JinjaTemplate:
    """A template in Jinja. Where it marks nothing with `{% generation %}`, the assistant's turns is found by writing
    the prompt for each of its turns: what comes then, up to the end of the turn, is its own (`assistant_spans.py`).

    One that leaves out what is said where content is text, as LLaVA's does, is given it in parts. It is one of
    transformers' processors, which begin a text as their tokenizer does, where the template does not."""

    is_whole = True

    def __init__(
        self,
        name: str,
        content: str,
        special_tokens: dict[str, str],
        begins: str = "",
        with_tools: str | None = None,
        day: str | None = None,
    ) -> None:
        """`begins`: what a tokenizer begins a text with; `with_tools`: the template of conversations with tools, where
        that is another; `day`: what the template takes for today (2026-11-27), None for the clock's. Raises UserError
        for a template that is wrong, or that never ends a turn."""
        self.name = name
        self.content = self._written = content
        self._special, self._begins, self._day = special_tokens, begins, day
        self._tried: dict[str, bool] = {}
        self._marks = compiled(name, content)
        self._in_parts = self._reads_parts_alone()
        self._turn_end = "" if self._marks else self._find_turn_end()
        self.ends_without_answer = self._marks and self._counts_answers_alone()
        self._with_tools = None
        if with_tools is not None:
            self._with_tools = JinjaTemplate(f"{name} (tool_use)", with_tools, special_tokens, begins, day=day)
            self.content += with_tools

    def __call__(self, messages: Sequence[Message], tools: list[Any] | None = None) -> list[RenderedText]:
        if tools and self._with_tools is not None:
            return self._with_tools(messages, tools)
        said = [message.text for message in messages]
        said += [json.dumps(message.fields, ensure_ascii=False) for message in messages if len(message.fields) > 2]
        if any(mark in text for text in (*said, json.dumps(tools, ensure_ascii=False)) for mark in (BEGIN, END)):
            raise ValueError("its text holds a noncharacter of Unicode, U+FDD0 or U+FDD1")
        if self._in_parts and any(message.text.count(IMAGE) != len(message.images) for message in messages):
            raise ValueError("its text holds a noncharacter of Unicode, U+FDD2")
        self._refuse_unwritten(messages, tools)
        if self._marks:
            return _between_marks(self._render(messages, tools))
        return self._by_prompts(messages, tools)

    def prompt(self, messages: Sequence[Message]) -> list[RenderedText]:
        text = self._render(messages, prompts=True)
        return [RenderedText(text.replace(BEGIN, "").replace(END, ""), False)]

    @property
    def turn_end(self) -> str:
        """What stands behind the assistant's text and counts, blanks at its end apart; empty where nothing does."""
        if not self._marks:
            return self._turn_end
        try:
            said = "".join(piece.text or "" for piece in self(_PROBED) if piece.counts)
        except ValueError:
            return ""
        return said.rpartition(_PROBE)[2].strip()

    def _render(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None = None,
        *,
        prompts: bool = False,
        in_parts: bool | None = None,
    ) -> str:
        in_parts = self._in_parts if in_parts is None else in_parts
        masked = [number for number, message in enumerate(messages) if not message.counts] if self._marks else []
        values: dict[str, Any] = {"messages": [_turn(message, in_parts) for message in messages], "tools": tools}
        values |= {"documents": None, "add_generation_prompt": prompts, **self._special}
        text = rendered(self._written, masked, self._day, **values)
        if not in_parts:
            return text
        text = images_found(text, sum(message.text.count(IMAGE) for message in messages))
        return text if text.startswith(self._begins) else self._begins + text

    def _refuse_unwritten(self, messages: Sequence[Message], tools: list[Any] | None) -> None:
        """Raises ValueError for what a conversation has beside its text and the template leaves out."""
        has = {
            "tools": bool(tools),
            "tool_calls": any(message.fields.get("tool_calls") for message in messages),
            "reasoning_content": any(message.reasoning for message in messages),
            "tool": any(message.role == "tool" for message in messages),
        }
        for name, is_there in has.items():
            if is_there and not self._writes(name):
                what = "turns of role 'tool'" if name == "tool" else f"{name!r}"
                raise ValueError(
                    f"the chat template leaves out {what}: name one that writes them, with --chat-template, in a job "
                    "data.chat.template"
                )

    def _writes(self, name: str) -> bool:
        """Whether it writes `tools`, `tool_calls`, a reasoning, or turns of a tool: found out by trying once. One that
        does not take what is tried is thought to: then it refuses, too, what it does not take."""
        if name not in self._tried:
            try:
                self._tried[name] = _PROBE in self._render(*_PROBES[name])
            except BoundsError:
                raise
            except ValueError:
                self._tried[name] = True
        return self._tried[name]

    def _by_prompts(self, messages: Sequence[Message], tools: list[Any] | None) -> list[RenderedText]:
        finder = SpanFinder(partial(self._render, tools=tools), messages, self._turn_end, self._said_in_one)
        pieces, done = [], 0
        for start, end in finder.spans():
            pieces += [RenderedText(finder.text[done:start], False), RenderedText(finder.text[start:end], True)]
            done = end
        return [*pieces, RenderedText(finder.text[done:], False)]

    def _said_in_one(self, message: Message) -> str:
        """What stands in one piece of what a turn says."""
        return message.text.rpartition(IMAGE)[2] if self._in_parts else message.text

    def _reads_parts_alone(self) -> bool:
        """Raises UserError for a template that leaves out what is said in parts, too."""
        as_text = self._writes_what_is_said(in_parts=False)
        if not as_text and self._writes_what_is_said(in_parts=True):
            return True
        if as_text is False:
            raise UserError(
                f"chat template {self.name}: it leaves out the assistant's turns; name another: "
                "--chat-template, in a job data.chat.template",
                code="answers_left_out",
            )
        return False

    def _writes_what_is_said(self, *, in_parts: bool) -> bool | None:
        """None where it takes no such conversation. Raises UserError where it takes too long, or too much memory."""
        try:
            return _PROBE in self._render(_PROBED, in_parts=in_parts)
        except BoundsError as error:
            raise UserError(f"chat template {self.name}: {error}", code="failing_chat_template") from error
        except ValueError:
            return None

    def _counts_answers_alone(self) -> bool:
        """Whether what it marks ends with the answer itself, blanks apart; False where it does not take one."""
        try:
            counted = "".join(piece.text or "" for piece in self(_PROBED) if piece.counts)
        except ValueError:
            return False
        return counted.rstrip().endswith(_PROBE)

    def _find_turn_end(self) -> str:
        """What the template writes behind the assistant's text, blanks at its end apart: the model learns to write it,
        and so to stop."""
        try:
            text = self._render(_PROBED)
        except ValueError as error:
            raise UserError(f"chat template {self.name}: {error}", code="failing_chat_template") from error
        end = text.rpartition(_PROBE)[2].rstrip()
        if not end:
            raise UserError(
                f"chat template {self.name}: it writes nothing that ends an assistant's turn, so a model would never "
                "learn to stop; mark what counts with {% generation %} and {% endgeneration %}",
                code="no_end_of_answer",
            )
        return end


def _turn(message: Message, in_parts: bool) -> dict[str, Any]:
    """As templates read it: as its line has it, with the names for its reasoning that transformers gives it, too."""
    turn = {**message.fields, "role": message.role}
    if message.content is not None:
        turn["content"] = to_parts(message.content) if in_parts else message.content
    if (reasoning := message.reasoning) is None:
        return turn
    return {"thinking": reasoning, **turn, "reasoning_content": reasoning}


def _between_marks(text: str) -> list[RenderedText]:
    pieces = []
    for number, part in enumerate(text.split(BEGIN)):
        said, _, rest = part.partition(END) if number else ("", "", part)
        pieces += [RenderedText(said, True), RenderedText(rest, False)]
    return pieces


def template_file(path: Path) -> str:
    """The text of a template. Raises UserError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"chat template {path} cannot be read: {error}", code="unreadable_chat_template") from error
