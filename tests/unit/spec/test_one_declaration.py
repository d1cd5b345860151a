"""A field that is declared with what is known of it is in every table over all fields, with no other edit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import pytest

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag, NoMegatronFlag, ShortName
from orchestrator.fields.values import Positive
from orchestrator.migration.megatron_flags.table import old_names, rows
from orchestrator.spec.documents.field_names import short_names
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.messages.document import Document
from orchestrator.spec.messages.suggestions import suggest
from orchestrator.spec.schema.canonical import config_hash
from orchestrator.spec.schema.diff import on_resume
from orchestrator.spec.schema.shape import declared_around

NO_MORE_TEETH = "the checkpoint's gears have other teeth"


class GearsSpec(Section):
    """A section that no job has."""

    num_gears: Annotated[
        Positive,
        resume.forbidden(NO_MORE_TEETH),
        HashedIfChanged(),
        ShortName("cogs"),
        AlsoCalled("n_gear", single_gear="1", num_teeth="(one fewer)"),
        MegatronFlag(default=4, old_names=("gear-count",)),
    ] = 3
    """Gears that mesh with each other."""
    helical: bool = False
    """Whether the teeth are cut at an angle."""


class JobWithGears(JobSections):
    """A job that has this section too."""

    gears: Annotated[GearsSpec, resume.safe("gears turn without training"), NoMegatronFlag("it has no gears")] = (
        GearsSpec()
    )


class JobWithNewGears(JobSections):
    """The same where the section itself is newer than stored specs."""

    gears: Annotated[GearsSpec, HashedIfChanged()] = GearsSpec()


FIELD = "gears.num_gears"
DOCUMENT = Document(JobWithGears, noun="job with gears", such_as="`gears:`", written_by="nothing")


@pytest.mark.parametrize(
    ("path", "kind", "reason"),
    [(FIELD, "forbidden", NO_MORE_TEETH), ("gears.helical", "safe", "gears turn without training")],
)
def test_what_a_change_means(small: Any, path: str, kind: str, reason: str) -> None:
    meaning = on_resume(path, JobWithGears).judge(small.job(), small.job(), experts_change_format=False)
    assert (meaning.kind, meaning.reason) == (kind, reason)


def test_hash() -> None:
    def hashed(**gears: Any) -> str:
        return config_hash({"name": "a", "gears": gears}, JobWithGears)

    assert hashed(num_gears=3, helical=False) == hashed(helical=False)
    assert len({hashed(num_gears=4), hashed(num_gears=3), hashed(helical=False)}) == 3


def test_hash_of_a_newer_key_in_a_newer_section() -> None:
    documents = [{}, {"gears": {"helical": False}}, {"gears": {"num_gears": 3, "helical": False}}]
    assert len({config_hash({"name": "a", **document}, JobWithNewGears) for document in documents}) == 1
    assert config_hash({"gears": {"helical": True}}, JobWithNewGears) != config_hash({}, JobWithNewGears)


def test_names() -> None:
    assert short_names(JobWithGears)["cogs"] == FIELD
    said = [suggest(name, (), [], DOCUMENT)[0] for name in ("n_gear", "single_gear", "num_teeth", "n_gaer")]
    assert said[0] == f"did you mean {FIELD}?"
    assert said[1] == f"did you mean {FIELD}: 1?"
    assert said[2] == f"did you mean {FIELD} (one fewer)?"
    assert said[3] == said[0]


def test_flags() -> None:
    [row] = [row for row in rows(JobWithGears) if row.path == FIELD]
    assert (row.flag, row.default, row.kind.read("7"), row.kind.write(7)) == ("num-gears", 4, 7, "7")
    assert old_names(JobWithGears)["gear-count"] == "num-gears"
    declared = declared_around("gears.helical", NoMegatronFlag, JobWithGears)
    assert declared is not None
    assert declared.reason == "it has no gears"


def test_reference() -> None:
    script = Path(__file__).parents[3] / "scripts" / "reference.py"
    specification = importlib.util.spec_from_file_location("reference", script)
    assert specification is not None
    assert specification.loader is not None
    reference = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(reference)
    page = reference.document_page("Jobs", "With gears.", JobWithGears)
    assert "## `gears`\n\nA section that no job has.\n" in page
    assert "| `num_gears` | integer > 0 | `3` | Gears that mesh with each other. |\n" in page
