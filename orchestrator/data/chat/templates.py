"""Chat templates: from the turns of a conversation to text, and which of it the assistant says.

A template is the tokenizer's own or a person's, in Jinja as transformers reads it, or one of two built in. It runs in a
sandbox and sees no clock, so that the same conversations always give the same data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.data.chat.conversations import Message
from orchestrator.data.chat.images import IMAGE
from orchestrator.data.chat.jinja import BEGIN, END, compiled, rendered
from orchestrator.data.chat.parts import images_found, to_parts
from orchestrator.errors import UserError

_PROBE = "answer"
_PROBED = (Message("user", "question"), Message("assistant", _PROBE))


@dataclass(frozen=True)
class Piece:
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
    """Whether nothing that counts ends what the assistant says, so that a model never learns to stop."""

    def __call__(self, messages: Sequence[Message]) -> list[Piece]:
        """The text of a conversation. Raises ValueError for one that the template does not take."""
        ...

    def prompt(self, messages: Sequence[Message]) -> list[Piece]:
        """What the assistant's next turn goes on from. Raises ValueError for a conversation that it does not take."""
        ...


class PlainTemplate:
    """Role names in plain text, for tokenizers that know nothing of turns; the assistant's end with the token that ends
    a document."""

    name = content = "plain"
    is_whole = ends_without_answer = False

    def __call__(self, messages: Sequence[Message]) -> list[Piece]:
        pieces = []
        for number, message in enumerate(messages):
            gap = "\n\n" if number else ""
            pieces.append(Piece(f"{gap}{message.role.capitalize()}:\n", False))
            says = message.role == "assistant"
            pieces.append(Piece(message.content, says))
            if says:
                pieces.append(Piece(None, True))
        return pieces

    def prompt(self, messages: Sequence[Message]) -> list[Piece]:
        *pieces, _, _ = self([*messages, Message("assistant", "")])  # the empty text of that turn, and its end
        return pieces


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
{%- else %}{{ 'ASSISTANT:' }}{% generation %}{{ ' ' + message['content'] + end }}{% endgeneration %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}
"""
"""Vicuna's conversations, which are LLaVA 1.5's. `begin` and `end`: the tokenizer's own of a text and of a document."""


class JinjaTemplate:
    """A template in Jinja. Where it marks nothing with `{% generation %}`, what the assistant says is found by writing
    the conversation up to each of its turns: what comes then, up to the end of the turn, is its own.

    One that leaves out what is said where content is text, as LLaVA's does, is given it in parts. It is one of
    transformers' processors, which begin a text as their tokenizer does, where the template does not."""

    is_whole = True

    def __init__(self, name: str, content: str, special_tokens: dict[str, str], begins: str = "") -> None:
        """`begins`: what a tokenizer begins a text with. Raises UserError for a template that is wrong, or that never
        ends a turn."""
        self.name, self.content = name, content
        self._special, self._begins = special_tokens, begins
        self._template, self._marks = compiled(name, content)
        self._in_parts = self._reads_parts_alone()
        self._turn_end = "" if self._marks else self._find_turn_end()
        self.ends_without_answer = self._marks and self._counts_answers_alone()

    def __call__(self, messages: Sequence[Message]) -> list[Piece]:
        if any(mark in message.content for message in messages for mark in (BEGIN, END)):
            raise ValueError("its text holds a noncharacter of Unicode, U+FDD0 or U+FDD1")
        if self._in_parts and any(message.content.count(IMAGE) != len(message.images) for message in messages):
            raise ValueError("its text holds a noncharacter of Unicode, U+FDD2")
        return _between_marks(self._render(messages)) if self._marks else self._by_prefixes(messages)

    def prompt(self, messages: Sequence[Message]) -> list[Piece]:
        text = self._render(messages, prompts=True)
        return [Piece(text.replace(BEGIN, "").replace(END, ""), False)]

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

    def _render(self, messages: Sequence[Message], *, prompts: bool = False) -> str:
        turns = _turns(messages, self._in_parts)
        text = rendered(self._template, messages=turns, add_generation_prompt=prompts, **self._special)
        if not self._in_parts:
            return text
        text = images_found(text, sum(message.content.count(IMAGE) for message in messages))
        return text if text.startswith(self._begins) else self._begins + text

    def _by_prefixes(self, messages: Sequence[Message]) -> list[Piece]:
        text, pieces, done = self._render(messages), [], 0
        for number, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before = self._render(messages[:number], prompts=True)
            said = message.content.rpartition(IMAGE)[2] if self._in_parts else message.content
            end = self._end_of_turn(text, len(before), said)
            if not text.startswith(before) or len(before) < done or end is None:
                raise ValueError(
                    f"the chat template writes the assistant's turn {number} otherwise within the conversation than "
                    "at its end, so that it cannot be told what counts; mark that in the template with "
                    "{% generation %} and {% endgeneration %}"
                )
            pieces += [Piece(text[done : len(before)], False), Piece(text[len(before) : end], True)]
            done = end
        return [*pieces, Piece(text[done:], False)]

    def _end_of_turn(self, text: str, start: int, content: str) -> int | None:
        """Where in a text the turn that begins at `start` ends; None where it holds more, or other, than the content.

        Many templates take the blanks around a content away.
        """
        for wanted in (content.lstrip() + self._turn_end, content.strip() + self._turn_end):
            at = text.find(wanted, start)
            if at >= 0 and text.count(self._turn_end, start, at + len(wanted)) == wanted.count(self._turn_end):
                return at + len(wanted)
        return None

    def _reads_parts_alone(self) -> bool:
        """Raises UserError for a template that leaves out what is said in parts, too."""
        as_text = self._writes_what_is_said(in_parts=False)
        if not as_text and self._writes_what_is_said(in_parts=True):
            return True
        if as_text is False:
            raise UserError(
                f"chat template {self.name}: it leaves out what the assistant says; name another: "
                "--chat-template, in a job data.chat.template"
            )
        return False

    def _writes_what_is_said(self, *, in_parts: bool) -> bool | None:
        """None where it takes no such conversation."""
        turns = _turns(_PROBED, in_parts)
        try:
            return _PROBE in rendered(self._template, messages=turns, add_generation_prompt=False, **self._special)
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
            raise UserError(f"chat template {self.name}: {error}") from error
        end = text.rpartition(_PROBE)[2].rstrip()
        if not end:
            raise UserError(
                f"chat template {self.name}: it writes nothing that ends an assistant's turn, so that a model would "
                "never learn to stop; mark what counts with {% generation %} and {% endgeneration %}"
            )
        return end


def _turns(messages: Sequence[Message], in_parts: bool) -> list[dict[str, Any]]:
    """As templates read them."""
    return [{"role": each.role, "content": to_parts(each.content) if in_parts else each.content} for each in messages]


def _between_marks(text: str) -> list[Piece]:
    pieces = []
    for number, part in enumerate(text.split(BEGIN)):
        said, _, rest = part.partition(END) if number else ("", "", part)
        pieces += [Piece(said, True), Piece(rest, False)]
    return pieces


def template_file(path: Path) -> str:
    """The text of a template. Raises UserError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"chat template {path} cannot be read: {error}") from error
