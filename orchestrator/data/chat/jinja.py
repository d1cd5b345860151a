"""Jinja as transformers has it for chat templates, in a sandbox that sees no clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.errors import UserError

BEGIN, END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode, which no text holds: around what `{% generation %}` marks."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    @staticmethod
    def _mark(caller: Callable[[], str]) -> str:
        return f"{BEGIN}{caller()}{END}"


def compiled(name: str, content: str) -> tuple[jinja2.Template, bool]:
    """A template, and whether it marks anything with `{% generation %}`. Raises UserError for one that is wrong."""
    engine = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    engine.filters["tojson"] = _to_json
    engine.globals["raise_exception"] = _raise_exception
    try:
        template = engine.from_string(content)
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"chat template {name}, line {error.lineno}: {error.message}") from error
    return template, "generation" in {token for _, kind, token in engine.lex(content) if kind == "name"}


def rendered(template: jinja2.Template, **values: Any) -> str:
    """What a template makes of values. Raises ValueError for those that it does not take."""
    try:
        return template.render(**values)
    except (jinja2.TemplateError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"the chat template does not take it: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    """As transformers has it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
