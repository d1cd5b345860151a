"""Files that are not job specs get one plain message; files that only look unusual are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.pace import at_the_promised_pace

from orchestrator.errors import Problem, SpecError, UserError
from orchestrator.spec.loading import load_job
from orchestrator.spec.yaml.reader import parse_yaml, read_text

SPEC = Path("job.yaml")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def message(content: bytes) -> str:
    SPEC.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_job([SPEC])
    return str(caught.value).partition("\n")[0]


def test_empty() -> None:
    assert message(b"") == "job.yaml: is empty"


def test_binary() -> None:
    assert message(b"\x7fELF\x00\x01") == "job.yaml: is a binary file; a job spec is YAML text"


def test_binary_where_a_script_is_meant() -> None:
    SPEC.write_bytes(b"\x7fELF\x00\x01")
    problem = read_text(SPEC, "script")
    assert isinstance(problem, Problem)
    assert problem.message == "is a binary file; a script is text"


def test_not_utf8() -> None:
    assert message("name: a\ntracking: {experiment: é}\n".encode("latin-1")) == (
        "job.yaml:2:24: is not UTF-8: byte 0xe9 in line 2"
    )


def test_control_character() -> None:
    assert message(b"name: a\nmodel: \x07\n") == "job.yaml:2:8: not YAML: holds a control character"


def test_missing() -> None:
    with pytest.raises(SpecError, match=r"^nowhere\.yaml: there is no such file$"):
        load_job([Path("nowhere.yaml")])


def test_a_value_in_a_file_s_place() -> None:
    with pytest.raises(SpecError) as refused:
        load_job([Path("batch.micro_batch_size=8")])
    assert "= to change a value of a job, write --set batch.micro_batch_size=8" in str(refused.value)


def test_folder(tmp_path: Path) -> None:
    Path("jobs").mkdir()
    with pytest.raises(SpecError, match=r"^jobs: is a folder; a job spec is a YAML file$"):
        load_job([Path("jobs")])


def test_name_that_no_file_can_have() -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load_job([Path("a\0b")])


def test_no_file() -> None:
    with pytest.raises(UserError, match="no job spec was given"):
        load_job([])


def test_ten_megabytes_are_refused_at_once() -> None:
    content = b"name: a\n" * (10_000_000 // 8)
    assert message(content) == "job.yaml: is larger than 1000 kB, which no job spec is"
    assert at_the_promised_pace(lambda: message(content), enough=0.5, attempts=3) < 0.5


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 900_000,
        b"{" * 900_000,
        b"- " * 400_000,
        b"a: " + b"x" * 900_000,
        b"".join(b"key_%d: 1\n" % number for number in range(70_000)),
        b"".join(b"num_layrs_%d: 1\n" % number for number in range(50_000)),
        b"name: a\n" * 95_000,
        b"a: &a " + b"[" * 20 + b"]" * 20 + b"\nb: [" + b"*a," * 100_000 + b"]",
    ],
    ids=["brackets", "braces", "dashes", "long text", "many keys", "unknown keys", "duplicates", "aliases"],
)
def test_a_file_made_to_hurt_is_refused_quickly(content: bytes) -> None:
    messages: list[str] = []
    assert at_the_promised_pace(lambda: messages.append(message(content)), enough=5.0) < 5.0
    assert all(messages)


def test_a_blend_of_thousands_of_sources_is_read(small: Any) -> None:
    """Its paths and weights are three values a source; the file's size is what limits it."""
    sources = "".join(f"    - {{path: data/{number:05d}, weight: {1 + number % 7}}}\n" for number in range(15_000))
    SPEC.write_text(small.text)
    Path("blend.yaml").write_text(f"data:\n  blend:\n{sources}")
    assert len(load_job([SPEC, Path("blend.yaml")]).job.data.blend) == 15_000


def test_every_bad_file_is_reported() -> None:
    Path("one.yaml").write_text("name: [")
    Path("two.yaml").write_text("modle: {}\n")
    with pytest.raises(SpecError) as caught:
        load_job([Path("one.yaml"), Path("two.yaml"), Path("three.yaml")])
    sources = [problem.location.source for problem in caught.value.problems if problem.location]
    assert sources == ["one.yaml", "two.yaml", "three.yaml"]


def test_a_byte_order_mark_and_windows_line_ends_are_read(small: Any) -> None:
    SPEC.write_bytes(b"\xef\xbb\xbf" + small.text.replace("\n", "\r\n").encode())
    loaded = load_job([SPEC])
    assert loaded.job == small.job()
    assert str(loaded.places.location("schedule.train_iters")) == "job.yaml:6:12"


def test_a_spec_of_thousands_of_problems_says_how_many_more() -> None:
    SPEC.write_text("".join(f"unknown_{number}: 1\n" for number in range(500)))
    with pytest.raises(SpecError) as caught:
        load_job([SPEC])
    assert len(caught.value.problems) == 506
    assert str(caught.value).endswith("… and 406 more problems")


@pytest.mark.parametrize(
    ("batch", "place", "hint"),
    [
        ("  micro_batch_size 8\n  num_micro_batches: 2\n", "4:20", "line 3 may lack its colon: micro_batch_size: 8"),
        ("  num_micro_batches: 2\n  micro_batch_size 8  # two\n\n", "6:1", "line 4 may lack its colon"),
        ("  micro_batch_size:8\n  num_micro_batches: 2\n", "4:20", "line 3 lacks a space after its colon"),
        ("   micro_batch_size: 8\n  num_micro_batches: 2\n", "4:3", "line 4 starts in column 3, line 3 in column 4"),
        ("  micro_batch_size: 8\n   num_micro_batches: 2\n", "4:21", "line 4 starts in column 4, line 3 in column 3"),
        ("  micro_batch_size: a: 8\n", "3:22", "a value that holds a colon and a space needs quotes"),
        ('  micro_batch_size: "8" 8\n', "3:25", "a line before may lack its colon"),
        ("  micro_batch_size:\N{NO-BREAK SPACE}8\n  num_micro_batches: 2\n", "4:20", "line 3 has a no-break space"),
        ("  rampup_batch_size: {samples: 8\n", "4:6", "the { of line 3 is not closed"),
        ("  rampup_batch_size: [8, 8\n", "4:6", "the [ of line 3 is not closed, or lacks a comma"),
        ("  rampup_batch_size: {samples: 8 increment: 8}\n", "3:43", "the { of line 3 is not closed, or lacks a comma"),
        ('  micro_batch_size: "8\n', "3:21", "the quote of line 3 is not closed"),
    ],
)
def test_where_the_parser_stops_the_line_of_the_slip_is_named(batch: str, place: str, hint: str) -> None:
    [problem] = parse_yaml(f"name: a\nbatch:\n{batch}model:\n  preset: gpt-tiny\n", "job.yaml").problems
    assert str(problem.location) == f"job.yaml:{place}"
    assert hint in str(problem.hint)
