"""What problems are told apart by: their codes, fields and numbers, and not the words of their messages."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Checks of warnings, whose problems get the codes of `warnings.WARNINGS`; a rule's problems get its name.
CODED_BY_THEIR_CALLER = {
    "planning/warnings.py",
    "planning/checks/preflight_checks.py",
    "planning/checks/unusual_values.py",
    "planning/suggestions/bubble.py",
}


def _has_no_code(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Problem"
        and len(node.args) < 5
        and "code" not in {keyword.arg for keyword in node.keywords}
    )


def test_every_problem_has_a_code() -> None:
    without = set()
    for path in (ROOT / "orchestrator").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(ROOT / "orchestrator")
        is_a_rule = "rules" in place.parts or place.name == "rules.py"
        if "Problem(" in text and not is_a_rule and any(map(_has_no_code, ast.walk(ast.parse(text)))):
            without.add(str(place))
    assert without == CODED_BY_THEIR_CALLER


# Files that compare messages or collect them in sets, keys or tuples: to say or to find words, and to decide nothing.
GOES_BY_WORDS = {
    "api/starts/start_warnings.py": "a start says a sentence once, of however many fields it is",
    "review/query.py": "a person looks for words",
    "runtime/checkpointing/checkpointer.py": "what several ranks say is said once",
}


def _goes_by_a_message(node: ast.AST) -> bool:
    told: list[ast.expr]
    match node:
        case ast.Compare(left, _, others):
            told = [left, *others]
        case ast.Tuple(told, ast.Load()) | ast.Set(told):
            pass
        case ast.SetComp(one) | ast.DictComp(one):
            told = [one]
        case _:
            return False
    told = [*told, *(each.body for each in told if isinstance(each, ast.IfExp))]
    return any(isinstance(each, ast.Attribute) and each.attr == "message" for each in told)


def test_nothing_depends_on_the_words_of_a_message() -> None:
    """Problems have codes, fields and numbers."""
    package = ROOT / "orchestrator"
    sources = {path: text for path in package.rglob("*.py") if ".message" in (text := path.read_text())}
    found = {path for path, text in sources.items() if any(map(_goes_by_a_message, ast.walk(ast.parse(text))))}
    assert {path.relative_to(package).as_posix() for path in found} == GOES_BY_WORDS.keys()
