"""What the assistant says in a rendered conversation, for chat templates that do not mark it.

A turn begins where the prompt for it ends, and ends with what ends an answer. Both are looked for in the text of the
whole conversation, which may hold a turn otherwise than when it was the last: templates leave the reasoning of earlier
turns out, while the prompt for a turn may begin one. A character of ours in a turn's text then tells where the text
behind it lies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple, Protocol

from orchestrator.data.chat.conversations import REASONING, Message
from orchestrator.data.chat.rendering import BoundsError

_PLACE = "\ufdd4"
"""A noncharacter of Unicode, which no text holds."""


class Render(Protocol):
    """What a template makes of some turns. Raises ValueError for those that it does not take."""

    def __call__(self, messages: Sequence[Message], *, prompts: bool = False) -> str:
        """The text, with `prompts` up to where the assistant's next turn begins."""
        ...


class Span(NamedTuple):
    """Places in a text."""

    start: int
    end: int


class SpanFinder:
    """Finds the spans of one conversation."""

    def __init__(
        self, render: Render, messages: Sequence[Message], turn_end: str, said: Callable[[Message], str]
    ) -> None:
        """`turn_end`: what ends an answer; `said`: the text of a turn that stands in one piece. Raises ValueError for a
        conversation that the template does not take."""
        self._render, self._messages, self._turn_end, self._said = render, messages, turn_end, said
        self.text = render(messages)

    def spans(self) -> list[Span]:
        """Of each turn that counts, what the model generates. Raises ValueError where that cannot be told."""
        found: list[Span] = []
        for number, message in enumerate(self._messages):
            if message.role == "assistant" and message.counts:
                start = self._start(number)
                end = None if start is None else self._end(number, start)
                if start is None or end is None or (found and start < found[-1].end):
                    raise ValueError(
                        f"the chat template writes the assistant's turn {number} differently within the conversation "
                        "than at its end, so the counted tokens cannot be determined; mark them in a copy of the "
                        "template "
                        'with {% generation %} and {% endgeneration %}, or give the turn "weight": 0: then it does not '
                        "count"
                    )
                found.append(Span(start, end))
        return found

    def _start(self, number: int) -> int | None:
        """Where a turn begins: where its text and the prompt for it part."""
        before = self._messages[:number]
        prompt = self._try(before, prompts=True)
        if prompt is None:
            return None
        if self.text.startswith(prompt):
            return len(prompt)
        if not before:
            return None
        marked = self._marked(number - 1)
        wanted, rest = self._behind(marked[:number], prompts=True), self._behind(marked)
        if wanted is None or rest is None or not self.text.endswith(rest):
            return None
        common = wanted if rest.startswith(wanted) else self._begins(marked, number, wanted, rest)
        return None if common is None else len(self.text) - len(rest) + len(common)

    def _begins(self, marked: Sequence[Message], number: int, wanted: str, rest: str) -> str | None:
        """What a turn begins with that the model does not say, where the prompt for it goes on otherwise: with the
        beginning of a reasoning, or with none. None where it is another beginning altogether."""
        fields = {name: value for name, value in marked[number].fields.items() if name not in REASONING}
        answer = replace(marked[number], content=_PLACE, fields=fields)
        plain = self._between([*marked[:number], answer, *marked[number + 1 :]])
        if plain is None:
            return None
        if not wanted.startswith(plain) and not plain.startswith(wanted):
            thought = replace(answer, fields={**fields, REASONING[0]: _PLACE})
            if not (self._between([*marked[:number], thought]) or "").startswith(wanted):
                return None
        return _shared(wanted, plain, rest)

    def _end(self, number: int, start: int) -> int | None:
        message = self._messages[number]
        end = self._end_of_more(number, start) if message.has_more else self._end_of_said(message, start)
        return self._end_of_rewritten(number, start) if end is None else end

    def _end_of_said(self, message: Message, start: int) -> int | None:
        """The end of a turn that is its content alone, as it is; None where the turn holds more, or other.

        Many templates take the blanks around a content away.
        """
        text, content = self.text[start:], self._said(message)
        begin = start + len(text) - len(text.lstrip())
        for wanted in (content.lstrip() + self._turn_end, content.strip() + self._turn_end):
            if self.text.startswith(wanted, begin):
                return begin + len(wanted)
        return None

    def _end_of_more(self, number: int, start: int) -> int | None:
        """The end of a turn of which more is written than its content. None where it ends otherwise than other turns,
        or is written otherwise than at the end and holds what ends one."""
        message = self._messages[number]
        prefix = (self._try(self._messages[: number + 1]) or "").rstrip()
        if not prefix.endswith(self._turn_end):
            return None
        if self.text.startswith(prefix):
            return len(prefix)
        if self._turn_end in f"{message.text}{json.dumps(message.fields, ensure_ascii=False)}":
            return None
        following = "" if number + 1 == len(self._messages) else self._behind(self._marked(number + 1))
        if following is None or not self.text.endswith(following):
            return None
        at = self.text.find(self._turn_end, start, len(self.text) - len(following))
        return at + len(self._turn_end) if at >= 0 else None

    def _end_of_rewritten(self, number: int, start: int) -> int | None:
        """The end of a turn whose content is written otherwise: a reasoning in it apart from the answer, or not at all
        once other turns follow. Raises ValueError where it is not even written at the end of a conversation."""
        marked = self._marked(number, len(self._messages[number].text))
        rest = self._behind(marked)
        if rest is None or not self.text.endswith(rest):
            return None
        turn_end = self._turn_end if rest.startswith(self._turn_end) else self._earlier_end(marked, number)
        if turn_end is None:
            return None
        stop = len(self.text) - len(rest)
        said, written = squeezed(self._said(self._messages[number])), squeezed(self.text[start:stop])
        if not squeezed(self.text[:stop]).endswith(said):
            if not written or not said.endswith(written):
                return None
            as_last = self._try(marked[: number + 1])
            if as_last is not None and not squeezed(as_last.partition(_PLACE)[0]).endswith(said):
                raise ValueError(
                    f"the chat template leaves out part of the assistant's turn {number}, such as its "
                    "reasoning: name one that writes it, with --chat-template (in a job: data.chat.template)"
                )
        return stop + len(turn_end)

    def _earlier_end(self, marked: Sequence[Message], number: int) -> str | None:
        """What is written of what ends an answer, where templates end the last turn with more: what stands in front of
        that with which the next turn begins, and would begin a conversation, too. None where that is nothing."""
        if number + 1 == len(marked):
            return None
        following = self._marked(number + 1)[number + 1]
        between = self._between([*marked[: number + 1], following, *marked[number + 2 :]])
        alone = self._try([following])
        if between is None or alone is None:
            return None
        begins = len(_shared(between[::-1], alone.partition(_PLACE)[0][::-1]))
        end = between[: len(between) - begins].rstrip()
        return end if end and self._turn_end.startswith(end) else None

    def _marked(self, number: int, place: int | None = None) -> list[Message]:
        """The turns, with our character in the text of one: at a place, else inside."""
        message = self._messages[number]
        place = _inside(message.text) if place is None else place
        marked = replace(message, content=message.text[:place] + _PLACE + message.text[place:])
        return [*self._messages[:number], marked, *self._messages[number + 1 :]]

    def _behind(self, marked: Sequence[Message], *, prompts: bool = False) -> str | None:
        """The text behind our character; None where it is not written once."""
        parts = (self._try(marked, prompts=prompts) or "").split(_PLACE)
        return parts[1] if len(parts) == 2 else None

    def _between(self, marked: Sequence[Message]) -> str | None:
        """The text between the first two of our characters; None where they are not written."""
        parts = (self._try(marked) or "").split(_PLACE)
        return parts[1] if len(parts) > 2 else None

    def _try(self, messages: Sequence[Message], *, prompts: bool = False) -> str | None:
        try:
            return self._render(messages, prompts=prompts)
        except BoundsError:
            raise
        except ValueError:
            return None


def _inside(text: str) -> int:
    """A place in the middle of a text and in front of a character that no template takes away: what a text begins and
    ends with may decide what it is taken for."""
    middle = len(text) // 2
    return next((place for place in range(middle, len(text)) if not text[place].isspace()), middle)


def _shared(*texts: str) -> str:
    """What texts begin with in common."""
    same = takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
    return "".join(characters[0] for characters in same)


def squeezed(text: str) -> str:
    """A text without blanks, which templates add and take away."""
    return "".join(text.split())
