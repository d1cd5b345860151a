"""Errors have codes: every one that is raised on purpose names one, and what is said under each code is what
tests/golden/refusals.txt says, as it stands in the source.

That file is the one place for the wording of errors; other tests ask for codes and values (`support.refused`). After a
wanted change write it anew, and read the difference:

    PYTHONPATH=tests python -m tests.unit.test_error_codes
"""

from __future__ import annotations

import ast
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.errors import OrchestratorError, Problem, SpecError

PACKAGE = Path(errors.__file__).parent
GOLDEN = Path(__file__).parents[1] / "golden" / "refusals.txt"
CLASSES = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
OWN_CODE = {name for name, kind in CLASSES.items() if getattr(kind, "code", None) is not None}


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Every call in the package that has a code or makes an error, and others of their modules, with their places."""
    found = []
    has_some = re.compile(rf"\bcode ?=|\b({'|'.join(CLASSES)})\b").search
    for path in sorted(PACKAGE.rglob("*.py")):
        if has_some(source := path.read_text(encoding="utf-8")):
            nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
            found += [(f"{path.relative_to(PACKAGE)}:{node.lineno}", node) for node in nodes]
    return found


def called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def code_of(call: ast.Call) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)


def texts_in(node: ast.expr) -> list[str]:
    """The codes that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return [*texts_in(node.body), *texts_in(node.orelse)] if isinstance(node, ast.IfExp) else []


def message_in(node: ast.expr) -> str:
    """The message as it stands in the source, with what is put in by name."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.FormattedValue) else part for part in node.values)
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part)}}}" for part in parts
        )
    return f"{{{ast.unparse(node)}}}"


def messages() -> Iterator[tuple[str, str]]:
    """Each code with each message, of the errors and of the functions that make them."""
    for _, call in calls():
        code = code_of(call)
        if called(call) in OWN_CODE and code is None and called(call) != "SpecError":
            yield str(CLASSES[called(call)].code), message_in(call.args[0])
        elif code is not None and called(call) not in ("Problem", "SpecError") and call.args:
            for each in texts_in(code):
                yield each, message_in(call.args[-1])


def wording() -> str:
    told: dict[str, dict[str, None]] = defaultdict(dict)
    for code, message in messages():
        told[code][message] = None
    return "\n\n".join("\n\n".join((f"# {code}", *told[code])) for code in sorted(told)) + "\n"


def test_every_error_has_a_code() -> None:
    without = [place for place, call in calls() if called(call) in CLASSES.keys() - OWN_CODE and code_of(call) is None]
    assert without == []


def test_what_is_said_is_what_the_snapshot_says() -> None:
    assert wording() == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [kind for kind in CLASSES.values() if kind is not SpecError])
def test_a_code_reaches_another_process(kind: type[OrchestratorError]) -> None:
    again = pickle.loads(pickle.dumps(kind("what is wrong", code="some_code")))
    assert (type(again), str(again), again.code) == (kind, "what is wrong", "some_code")
    assert kind("what is wrong").code == kind.code


def test_a_wrong_spec_reaches_another_process() -> None:
    again = pickle.loads(pickle.dumps(SpecError(problems=[Problem("it is wrong", code="some_code")])))
    assert (again.code, [problem.code for problem in again.problems]) == ("wrong_spec", ["some_code"])


if __name__ == "__main__":
    GOLDEN.write_text(wording(), encoding="utf-8")
