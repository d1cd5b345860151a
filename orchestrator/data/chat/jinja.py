"""The program that renders chat templates: Jinja as transformers has it, in a sandbox.

`python -m orchestrator.data.chat.jinja SECONDS BYTES CHARACTERS` reads requests on its standard input, a JSON object a
line, and answers each with one: see `rendering.py`, which starts it. A template is a program that can loop for ever,
multiply a text beyond all memory or recurse, within one operation of Python that nothing in the same process can
interrupt. So the kernel bounds it here: a timer ends the process after SECONDS of processor time in one request, and
its address space is BYTES. CHARACTERS is how much a template may write.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.data.chat.rendering import BEGIN, END


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: the assistant's turns. Nothing is marked of the turns in `masked`."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.turns: Sequence[Mapping[str, Any]] = ()
        self.masked: frozenset[int] = frozenset()

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        names = nodes.Const(tuple(sorted({found.name for node in body for found in node.find_all(nodes.Name)})))
        call = self.call_method("_mark", [nodes.DerivedContextReference(), names])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, context: Context, names: Sequence[str], caller: Callable[[], str]) -> str:
        text = caller()
        is_masked = bool(self.masked) and self._turn(context.get_all(), names) in self.masked
        return text if is_masked else f"{BEGIN}{text}{END}"

    def _turn(self, variables: Mapping[str, Any], names: Sequence[str]) -> int:
        """The number of the turn that a block writes: that of a variable which the block names, else of any."""
        numbers = {id(turn): number for number, turn in enumerate(self.turns) if turn["role"] == "assistant"}
        named = {numbers[id(variables[name])] for name in names if id(variables.get(name)) in numbers}
        found = named or {numbers[id(value)] for value in variables.values() if id(value) in numbers}
        if len(found) != 1:
            raise jinja2.TemplateError(
                "it does not show which turn a {% generation %} block writes, so no turn can be left out of the loss"
            )
        return found.pop()


class Sandbox:
    """Compiled templates, by their text."""

    def __init__(self) -> None:
        self._engine = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        self._engine.filters["tojson"] = _to_json
        self._engine.globals["raise_exception"] = _raise_exception
        self._now: datetime | None = None
        self._engine.globals["strftime_now"] = self._strftime_now
        generation = self._engine.extensions[_Generation.identifier]
        assert isinstance(generation, _Generation), "what was registered is what is found"
        self._generation = generation
        self._templates: list[jinja2.Template] = []

    def _strftime_now(self, format: str) -> str:
        return (self._now or datetime.now()).strftime(format)

    def compile(self, content: str) -> bool:
        """Add a template, whose number is how many there were before; whether it marks anything with
        `{% generation %}`."""
        template = self._engine.from_string(content)
        marks = "generation" in {token for _, kind, token in self._engine.lex(content) if kind == "name"}
        self._templates.append(template)
        return marks

    def render(self, number: int, values: dict[str, Any], masked: Sequence[int], day: str | None) -> str:
        """What a template makes of values on a day, as ISO 8601 has it; now where there is none."""
        self._now = None if day is None else datetime.fromisoformat(day)
        self._generation.turns, self._generation.masked = values["messages"], frozenset(masked)
        return self._templates[number].render(**values)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _answer(sandbox: Sandbox, line: bytes, size: int, characters: int) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if "content" in request:
            return {"marks": sandbox.compile(request["content"])}
        text = sandbox.render(request["number"], request["values"], request["masked"], request["day"])
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"}
    except MemoryError:
        return {"error": f"it takes more than {size >> 20} MiB of memory", "is_too_much": True}
    except Exception as error:  # whatever a template makes Python stumble over
        return {"error": str(error) or type(error).__name__}
    if len(text) > characters:
        return {"error": f"it writes {len(text)} characters, more than {characters}", "is_too_much": True}
    return {"text": text}


def main() -> None:
    """Answer until the end of the input."""
    seconds, size, characters = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    size = size if most == resource.RLIM_INFINITY else min(size, most)
    resource.setrlimit(resource.RLIMIT_AS, (size, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is doing
    sandbox = Sandbox()
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = json.dumps(_answer(sandbox, line, size, characters)).encode() + b"\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
