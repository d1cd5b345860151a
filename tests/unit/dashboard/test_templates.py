"""Parts of pages that are replaced while somebody looks at them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import orchestrator.dashboard

TEMPLATES = sorted((Path(orchestrator.dashboard.__file__).parent / "templates").glob("*.html"))
REPLACED = "hx-select"
REACHABLE = ("a", "button", "input", "select", "summary")


class Focused(HTMLParser):
    """Elements without an id that take the keyboard's focus, inside of what is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.nameless: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self.inside or (tag in ("section", "header", "div") and (REPLACED in given or given.get("id") == "facts")):
            self.inside += [tag] if not self.inside or tag == self.inside[0] else []
            if tag in REACHABLE and "id" not in given and given.get("type") != "hidden":
                self.nameless.append(f"{tag} {given.get('href')}")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()


def nameless(text: str) -> list[str]:
    """What a template has of these; its macros are looked at, too."""
    text = re.sub(r"{%-? macro.*?%}", f"<section {REPLACED}>", text)
    text = re.sub(r"{%-? endmacro -?%}", "</section>", text)
    parser = Focused()
    parser.feed(re.sub(r"{%.*?%}", " ", re.sub(r"{{.*?}}", "x", text)))
    assert not parser.inside
    return parser.nameless


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_what_has_the_focus_has_it_after_a_part_was_replaced(template: Path) -> None:
    """htmx gives the focus back to an element of the same id, and to no other."""
    assert nameless(template.read_text()) == []


def test_a_link_without_an_id_is_found() -> None:
    assert nameless('<section hx-select="#x"><p><a href="/y">y</a></p></section><a href="/z">z</a>') == ["a /y"]
