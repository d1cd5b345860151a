"""Files that are not job specs get one plain message; files that only look unusual are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.pace import at_the_promised_pace
from support.problems import codes, problems_of
from support.refused import refused

from orchestrator.errors import Problem, SpecError
from orchestrator.spec.loading import load_job
from orchestrator.spec.yaml.reader import parse_yaml, read_text

SPEC = Path("job.yaml")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


LARGE = b"name: a\n" * (10_000_000 // 8)
NO_SPECS: dict[bytes, tuple[str, str]] = {
    b"": ("empty_document", "job.yaml"),
    b"\x7fELF\x00\x01": ("binary_file", "job.yaml"),
    "name: a\ntracking: {experiment: é}\n".encode("latin-1"): ("not_utf8", "job.yaml:2:24"),
    b"name: a\nmodel: \x07\n": ("control_character", "job.yaml:2:8"),
    LARGE: ("file_too_large", "job.yaml"),
}
NO_FILES = {
    "nowhere.yaml": "file_not_found",
    "batch.micro_batch_size=8": "file_not_found",
    ".": "not_a_file",
    "a\0b": "unreadable_file",
}


def problems_in(content: bytes) -> list[str]:
    SPEC.write_bytes(content)
    return codes(problems_of(lambda: load_job([SPEC])))


@pytest.mark.parametrize("content", NO_SPECS, ids=["empty", "binary", "latin-1", "control character", "large"])
def test_a_file_that_is_no_spec(content: bytes) -> None:
    SPEC.write_bytes(content)
    [problem] = problems_of(lambda: load_job([SPEC]))
    assert (problem.code, str(problem.location)) == NO_SPECS[content]


def test_binary_where_a_script_is_meant() -> None:
    SPEC.write_bytes(b"\x7fELF\x00\x01")
    problem = read_text(SPEC, "script")
    assert isinstance(problem, Problem)
    assert problem.code == "binary_file"


@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file(name: str) -> None:
    assert codes(problems_of(lambda: load_job([Path(name)]))) == [NO_FILES[name]]


def test_no_file() -> None:
    with refused("no_spec"):
        load_job([])


def test_ten_megabytes_are_refused_at_once() -> None:
    assert at_the_promised_pace(lambda: problems_in(LARGE), enough=0.5, attempts=3) < 0.5


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
    found: list[list[str]] = []
    assert at_the_promised_pace(lambda: found.append(problems_in(content)), enough=5.0) < 5.0
    assert all(found)


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


SLIPS = {
    "  micro_batch_size 8\n  num_micro_batches: 2\n": "4:20",
    "  num_micro_batches: 2\n  micro_batch_size 8  # two\n\n": "6:1",
    "  micro_batch_size:8\n  num_micro_batches: 2\n": "4:20",
    "   micro_batch_size: 8\n  num_micro_batches: 2\n": "4:3",
    "  micro_batch_size: 8\n   num_micro_batches: 2\n": "4:21",
    "  micro_batch_size: a: 8\n": "3:22",
    '  micro_batch_size: "8" 8\n': "3:25",
    "  micro_batch_size:\N{NO-BREAK SPACE}8\n  num_micro_batches: 2\n": "4:20",
    "  rampup_batch_size: {samples: 8\n": "4:6",
    "  rampup_batch_size: [8, 8\n": "4:6",
    "  rampup_batch_size: {samples: 8 increment: 8}\n": "3:43",
    '  micro_batch_size: "8\n': "3:21",
}
"""The lines of `batch`, and where the parser stops; the hint names the line of the slip."""


def problems_of_slip(batch: str) -> list[Problem]:
    return parse_yaml(f"name: a\nbatch:\n{batch}model:\n  preset: gpt-tiny\n", "job.yaml").problems


@pytest.mark.parametrize("batch", SLIPS)
def test_where_the_parser_stops(batch: str) -> None:
    [problem] = problems_of_slip(batch)
    assert (problem.code, str(problem.location)) == ("yaml_syntax", f"job.yaml:{SLIPS[batch]}")
