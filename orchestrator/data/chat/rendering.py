"""Chat templates rendered within bounds of time and size, by a process of their own (`jinja.py`)."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from orchestrator.errors import UserError
from orchestrator.safe_path import module_command

BEGIN, END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode, which no text holds: around what `{% generation %}` marks."""
SECONDS = 5.0
"""Of processor time, for one conversation."""
MEMORY = 1 << 30
"""Bytes that the process may address."""
CHARACTERS = 1 << 26
"""That a template may write."""


class TemplateError(Exception):
    """A template that cannot be compiled, or does not take what it is given; the message says why."""


class BoundsError(ValueError):
    """A template takes too long, or more memory than it may."""


class _Renderer:
    """The process, started when it is first needed and again where a template has ended it. Threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._left: subprocess.Popen[bytes] | None = None
        self._compiled: dict[str, tuple[int, bool]] = {}
        """The number of each template in the process, and whether it marks anything."""

    def compile(self, content: str) -> bool:
        """Whether a template marks anything with `{% generation %}`. Raises TemplateError and BoundsError."""
        with self._lock:
            return self._number(content)[1]

    def render(self, content: str, values: dict[str, Any], masked: Sequence[int], day: str | None) -> str:
        """What a template makes of values. Raises TemplateError and BoundsError."""
        with self._lock:
            number, _ = self._number(content)
            text: str = self._ask({"number": number, "values": values, "masked": masked, "day": day})["text"]
            return text

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def leave(self) -> None:
        """In a fork: the process is the parent's, which goes on to ask it; this one starts its own."""
        self._lock = threading.Lock()
        if self.process is not None:
            self.process.returncode = 0  # nobody here waits for it
            # Its pipes stay as they are: another thread of the parent may be reading.
            self._left, self.process = self.process, None

    def _number(self, content: str) -> tuple[int, bool]:
        if self.process is None or self.process.poll() is not None:
            self._start()
        if content not in self._compiled:
            self._compiled[content] = len(self._compiled), self._ask({"content": content})["marks"]
        return self._compiled[content]

    def _start(self) -> None:
        self.close()
        self._compiled.clear()
        limits = (str(SECONDS), str(MEMORY), str(CHARACTERS))
        self.process = subprocess.Popen(
            module_command("orchestrator.data.chat.jinja", *limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is this process's to deal with; the other ends with its input
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self.process
        assert process is not None, "it was started"
        assert process.stdin is not None, "its input is a pipe"
        assert process.stdout is not None, "its output is a pipe"
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        except BaseException:
            process.kill()  # its answer would be taken for that to the next request
            raise
        if not line.endswith(b"\n"):
            raise BoundsError(_why_ended(process.wait()))
        answer: dict[str, Any] = json.loads(line)
        if answer.get("is_too_much"):
            raise BoundsError(answer["error"])
        if "error" in answer:
            raise TemplateError(answer["error"])
        return answer


def _why_ended(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"it takes more than {SECONDS:g} s: a loop or a macro in it does not end soon enough"
    return f"the process that renders it ended (exit code {code}; -9 is often a lack of memory)"


RENDERER = _Renderer()
atexit.register(RENDERER.close)
os.register_at_fork(after_in_child=RENDERER.leave)


def compiled(name: str, content: str) -> bool:
    """Whether a template marks anything with `{% generation %}`. Raises UserError for one that is wrong."""
    try:
        return RENDERER.compile(content)
    except (TemplateError, BoundsError) as error:
        raise UserError(f"chat template {name}: {error}", code="failing_chat_template") from error


def rendered(content: str, masked: Sequence[int] = (), day: str | None = None, **values: Any) -> str:
    """What a template makes of values. Nothing is marked of the turns whose numbers are `masked`. `day`: what it takes
    for today, as ISO 8601 has it. Raises ValueError for values that it does not take, and BoundsError, which is one,
    where it takes too long or too much memory."""
    try:
        return RENDERER.render(content, values, masked, day)
    except BoundsError as error:
        raise BoundsError(f"the chat template cannot be rendered: {error}") from error
    except TemplateError as error:
        raise ValueError(f"the chat template rejects it: {error}") from error
