"""What the reader of shell scripts refuses, and how long scripts may be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.pace import at_the_promised_pace
from support.refused import refused

from orchestrator.errors import UserError
from orchestrator.migration.shell.command_substitution import follow
from orchestrator.migration.shell.parser import read_script
from orchestrator.migration.shell.started_program import Script
from orchestrator.migration.shell.syntax import Literal, ShellSyntaxError
from orchestrator.migration.shell.variables import Variables
from orchestrator.migration.shell.words import WordReader


def followed(script: str) -> Script:
    return follow(script, Variables(), lambda words: True)


@pytest.mark.parametrize(
    ("script", "line", "said"),
    [
        ("show 'a\nb", 1, "a quote that is not closed"),
        ('x\nshow "a', 2, "a quote that is not closed"),
        ("show $(a", 1, "a parenthesis that is not closed"),
        ("a\nb\nshow ${A", 3, "without }"),
        ("A=(1 2", 1, "an array that is not closed"),
        ("if true; then", 1, "elif or else or fi is missing"),
        ("fi", 1, "'fi' without its beginning"),
        ("show a )", 1, "')' where a command should start"),
        ("a\n\n;; b", 3, "';' where a command should start"),
        ("for 1 in a; do b; done", 1, "for without a variable's name"),
        ("eval 'if true'", 1, "in a text that a shell is given"),
        ("show `a", 1, "a backquote that is not closed"),
        ("a\nshow a > # b", 2, "> without what comes behind it"),
        ("case a in\na) b;;& *) c;; esac", 2, "leads on to the next"),
        ("case a in\na) b\n;& *) c;; esac", 3, "leads on to the next"),
        ("{ " * 60, 1, "nested"),
    ],
)
def test_a_script_that_cannot_be_read(script: str, line: int, said: str) -> None:
    with pytest.raises(ShellSyntaxError) as raised:
        followed(script)
    assert raised.value.line == line
    assert said in raised.value.message


@pytest.mark.parametrize("script", ["f() { f; }; f", "A='eval $A'; eval \"$A\"", "f() { eval f; }; bash -c f"])
def test_a_script_that_goes_round_in_itself(script: str) -> None:
    with refused("nested_too_deep", 20):
        followed(script)


@pytest.mark.parametrize(
    ("script", "refusal"),
    [
        ("A=${A:-" * 3000 + "}" * 3000, ("nested_too_deep",)),
        ("A=$((" + "(" * 400 + "1" + ")" * 400 + "))", ("nested_too_deep",)),
        (
            "A=ab\nfor i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21; do A=$A$A; done",
            ("variable_too_long", " A "),
        ),
        ("A=(a)\nfor i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do A+=(${A[@]}); done", ("array_too_long", " A ")),
        ("f() { :; }\n" + "while true; do f; f; f; done\n" * 40, ("script_too_long", "100,000")),
    ],
)
def test_a_script_that_grows_without_bound(script: str, refusal: tuple[str, ...]) -> None:
    with refused(*refusal):
        followed(script)


def test_a_loop_without_an_end_is_left() -> None:
    found = followed("while true; do A+=x; done; show on")
    assert len(found.commands) == 1
    assert found.notes == ["line 1: this loop was left after 1000 turns"]


def refusal(text: str) -> str | None:
    try:
        followed(text)
    except UserError as error:
        return str(error)
    return None


@given(st.text(st.sampled_from("ab $\"'\\`(){}[];&|<>#!=+-*/\n\t~?@1:%^"), max_size=40))
@settings(max_examples=examples(500), deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    assert refusal(text) != ""


def test_reading_is_fast_enough_for_a_long_script() -> None:
    script = "".join(f"V{n}=${{V{n - 1}:-{n}}}\n" for n in range(1, 3000))
    assert len(read_script(script)) == 2999


def test_a_long_word_is_read_in_one_go() -> None:
    """A blend of ten thousand sources: character by character it would take seconds."""

    class Counting(WordReader):
        looks = 0

        def peek(self, length: int = 1) -> str:
            self.looks += 1
            return super().peek(length)

    text = " ".join(f"0.1 /data/part_{number}_text_document" for number in range(10_000))
    reader = Counting(f'"{text}" next')
    assert reader.word() == (Literal(text, True),)
    assert reader.looks < 100


def test_a_shift_is_looked_for_as_a_document_once() -> None:
    """From each line to the end of the text it would take half a minute."""
    script = "X=$((1" + "+1<<a\n" * 60_000 + "))"
    commands: list[object] = []
    assert at_the_promised_pace(lambda: commands.extend(read_script(script)), enough=8) < 8
    assert len(commands) == 1
