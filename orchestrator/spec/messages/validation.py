"""Pydantic's errors in the words of a job spec."""

from __future__ import annotations

import sys
from typing import Any

from pydantic_core import ErrorDetails, ValidationError

from orchestrator.errors import Problem
from orchestrator.fields.formatting import any_of, dotted, few, show
from orchestrator.fields.values import MAX_COUNT, MAX_SIZE
from orchestrator.spec.messages.suggestions import closest
from orchestrator.spec.messages.value_hints import foreign, kind_hint, rewritten
from orchestrator.spec.schema.shape import JOB, Shape, fields_of

Place = tuple[str | int, ...]

_KINDS = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "finite_number": "a finite number",
}
_CODES = {
    "missing": "missing_key",
    "literal_error": "unknown_choice",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than": "out_of_range",
    "less_than_equal": "out_of_range",
    "string_pattern_mismatch": "invalid_name",
    "too_short": "wrong_length",
    "too_long": "wrong_length",
    "string_too_long": "wrong_length",
}
"""Of the other errors; what is not here is an `invalid_value`."""


_BOUNDS = {
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number from {ge:g} on",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number up to {le:g}",
}


def problems_of(errors: list[ErrorDetails], prefix: Place = (), root: Shape = JOB) -> list[Problem]:
    """One problem for each place that pydantic refused; the alternatives of a union become one."""
    grouped: dict[Place, list[ErrorDetails]] = {}
    for error in errors:
        grouped.setdefault(_place((*prefix, *error["loc"]), root), []).append(error)
    return [_problem(place, group, root) for place, group in grouped.items()]


def in_words(error: ErrorDetails) -> str:
    """What is wrong with a value, wherever it stands."""
    kind = _KINDS.get(error["type"])
    return f"expects {kind}, not {show(error['input'])}" if kind else _describe(error)[0]


def errors_in_words(error: ValidationError) -> str:
    """The first of all that is wrong with some values, in one line and without pydantic's words for it."""
    found = error.errors(include_url=False)
    return few(found, lambda each: ": ".join([*([dotted(each["loc"])] if each["loc"] else []), in_words(each)]))


def _place(location: Place, root: Shape) -> Place:
    """The part of pydantic's location that a person wrote: behind a scalar it names the alternatives of a union."""
    shape: Shape | None = root
    for length, part in enumerate(location):
        if shape is None or shape.kind in ("scalar", "text"):
            return location[:length]
        shape = fields_of(shape.section).get(str(part)) if shape.section else shape.items
    return location


def _problem(place: Place, errors: list[ErrorDetails], root: Shape) -> Problem:
    paths = (dotted(place),)
    error = errors[0]
    value = error["input"]
    if isinstance(value, str) and "${env:" in value and error["type"] != "value_error":
        message = "${env:NAME} is resolved on the node, so it can only stand where text is expected"
        return Problem(message, paths, code="environment_reference")
    if "[key]" in error["loc"] and error["type"] == "string_pattern_mismatch":
        message = "a variable's name has letters, digits and _ only, and does not start with a digit"
        return Problem(message, paths, code="invalid_name")
    if isinstance(value, int) and error["type"] == "float_type" and abs(value) > sys.float_info.max:
        message = f"must be within ±{sys.float_info.max:.2g}, not {show(value)}"
        return Problem(message, paths, code="out_of_range")
    kinds = [_KINDS[error["type"]] for error in errors if error["type"] in _KINDS]
    words = [error for error in errors if error["type"] == "literal_error"]
    if words and len(errors) > 1:  # of a field that takes words, or something else
        _, hint = _describe(words[0])
        limits = [_BOUNDS[each["type"]].format(**each["ctx"]) for each in errors if each["type"] in _BOUNDS]
        expected = [*_names(str(words[0]["ctx"]["expected"])), *kinds, *limits]
        message = f"expects {any_of(list(dict.fromkeys(expected)))}, not {show(value)}"
        return Problem(message, paths, hint or kind_hint(value, place, root), code="unknown_choice")
    if kinds:
        message = f"expects {any_of(list(dict.fromkeys(kinds)))}, not {show(value)}"
        return Problem(message, paths, kind_hint(value, place, root), code="wrong_type")
    message, hint = _describe(error)
    return Problem(message, paths, hint, code=_CODES.get(error["type"], "invalid_value"))


def _describe(error: ErrorDetails) -> tuple[str, str | None]:
    value, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is missing", None
        case "value_error":
            text = str(context["error"])
            return _value_error(text, value), rewritten(text, value)
        case "literal_error":
            return _not_one_of(str(context["expected"]), value)
        case "greater_than":
            return f"must be greater than {context['gt']:g}, not {show(value)}", None
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}, not {show(value)}", None
        case "less_than":
            return f"must be less than {context['lt']:g}, not {show(value)}", None
        case "less_than_equal":
            return f"must be at most {_limit(context['le'])}, not {show(value)}", None
        case "string_pattern_mismatch":
            rule = "at most 80 letters, digits, '.', '_' and '-', the first a letter or digit"
            return f"expects a name, not {show(value)}", f"a name is {rule}"
        case "too_short":
            return "must not be empty", None
        case "too_long":
            return f"holds at most {context['max_length']} items", None
        case "string_too_long":
            return f"has at most {context['max_length']} characters, not {len(value)}", None
        case _:
            return f"{error['msg']}, not {show(value)}", None


def _value_error(text: str, value: Any) -> str:
    """Validators that define what they want ("a duration is …") leave it to this to say what they got."""
    defines = text.startswith("a ") and not isinstance(value, dict | list)
    return f"{text}, not {show(value)}" if defines else text


def _limit(limit: Any) -> str:
    named = {MAX_SIZE: "2^31 - 1", MAX_COUNT: "2^62"}
    return named.get(limit, f"{limit:g}")


def _names(expected: str) -> list[str]:
    return expected.replace("'", "").replace(" or ", ", ").split(", ")


def _not_one_of(expected: str, value: Any) -> tuple[str, str | None]:
    names = _names(expected)
    near = closest(value, names, most=1) if isinstance(value, str) else []
    hint = f"did you mean {near[0]}?" if near else None
    if (meant := foreign(value)) is not None and any(name in meant.partition(" (")[0] for name in names):
        hint = f"write {meant}"
    return f"expects {any_of(names)}, not {show(value)}", hint
