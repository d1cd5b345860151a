"""From YAML files, overrides and presets to a JobSpec, with every problem of all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias

from pydantic import ValidationError

from orchestrator.errors import Location, Problem, SpecError, UserError
from orchestrator.files.stored_files import read_json
from orchestrator.spec.documents.composition import (
    Composition,
    apply_override,
    apply_preset,
    compose_files,
    compose_text,
)
from orchestrator.spec.documents.partial_validation import Examination
from orchestrator.spec.documents.plain_data import to_plain
from orchestrator.spec.job import STORED, JobSpec
from orchestrator.spec.messages.document import JOB_SPEC, Document, Root
from orchestrator.spec.messages.validation import errors_in_words
from orchestrator.spec.schema.shape import JOB, Shape, fields_of
from orchestrator.spec.tokenizer_type import with_tokenizer_type
from orchestrator.spec.yaml.places import Places

Check: TypeAlias = Callable[[Any], list[Problem]]
"""What is wrong with a job, or with the part of one that is known (see documents/partial_validation.py)."""


class LoadedDocument(NamedTuple, Generic[Root]):
    """What a document of any kind says, and where it came from."""

    value: Root
    places: Places
    """The location of each key."""
    text: str
    """What was written."""


class LoadedJob(NamedTuple):
    """A job spec and where it came from."""

    job: JobSpec
    places: Places
    """The location of each key."""
    text: str
    """What was written: one file as it is; several one after the other, each under its name; overrides as comments."""


def load_job(paths: Sequence[Path], overrides: Sequence[str] = (), also: Check | None = None) -> LoadedJob:
    """The job that is written in YAML files; a later file goes over an earlier one, `--set` overrides go over all.

    Raises SpecError with every problem of all of them, in the order of their places, and with what `also` finds in the
    part of a wrong job that is known.
    """
    if not paths:
        raise UserError("no job spec was given: name at least one YAML file", code="no_spec")
    return _load(compose_files(paths), overrides, also)


def load_text(text: str, source: str = "job.yaml", overrides: Sequence[str] = ()) -> LoadedJob:
    """The same for YAML text that is not in a file; `source` is what messages call it."""
    return _load(compose_text(text, source), overrides)


def _load(composition: Composition, overrides: Sequence[str], also: Check | None = None) -> LoadedJob:
    for override in overrides:
        apply_override(composition, override)
    if composition.sweep is not None:
        hint = "`orchestrator sweep run` runs them all, and with --dry-run shows them"
        message = "this file describes several jobs, and this command takes one"
        composition.problems.append(Problem(message, ("sweep",), hint, composition.sweep.location, "unexpected_sweep"))
    apply_preset(composition)
    return load_composition(composition, also)


def load_composition(composition: Composition, also: Check | None = None) -> LoadedJob:
    """The job of files that were read and merged already, overrides and preset included. Raises SpecError, with what
    `also` finds in the part of a wrong job that is known.
    """
    composition.root = with_tokenizer_type(composition.root)
    loaded = _finish(composition, JOB_SPEC, also)
    return LoadedJob(loaded.value, loaded.places, loaded.text)


def load_document(path: Path, document: Document[Root]) -> LoadedDocument[Root]:
    """What is written in a YAML file of any kind. Raises SpecError with every problem, in the order of their places."""
    return _finish(compose_files([path], document), document)


def load_document_text(text: str, source: str, document: Document[Root]) -> LoadedDocument[Root]:
    """The same for YAML text that is not in a file; `source` is what messages call it."""
    return _finish(compose_text(text, source, document), document)


def _finish(composition: Composition, document: Document[Root], also: Check | None = None) -> LoadedDocument[Root]:
    places = Places(composition.root, [source for source, _ in composition.texts])
    plain = to_plain(composition.root, document.shape, document)
    found = None
    if not composition.problems and not plain.problems:
        value, found = _build(document, plain.data)
        if value is not None:
            return LoadedDocument(value, places, _text(composition.texts))
    examination = Examination(plain.unavailable, composition.incomplete + plain.incomplete, root=document.shape)
    view = examination.examine(document.root, plain.data)
    if found is None:
        found = [*plain.problems, *examination.problems, *document.check(view)]
    if also is not None:
        found = [*found, *also(view)]
    raise SpecError(places.ordered([*composition.problems, *(places.placed(problem) for problem in found)]))


def _build(document: Document[Root], data: dict[str, Any]) -> tuple[Root | None, list[Problem] | None]:
    """(what the document says, what is wrong between its fields); neither where a field is wrong by itself."""
    try:
        return document.root.model_validate(data), None
    except SpecError as error:
        return None, error.problems
    except ValidationError:
        return None, None


def _text(texts: list[tuple[str, str]]) -> str:
    if len(texts) == 1:
        return texts[0][1]
    parts = [f"# {source}\n{text}".rstrip("\n") + "\n" for source, text in texts]
    return "\n".join(parts)


def dump_resolved(job: JobSpec) -> str:
    """The complete spec as JSON; what `load_resolved` reads."""
    return job.model_dump_json(indent=2) + "\n"


def load_resolved(path: Path) -> JobSpec:
    """A spec that was stored by `dump_resolved`, by this version or another.

    What is unknown here is ignored, and cross-field rules are not applied: the job has run. Raises UserError when the
    file cannot be read as a spec.
    """
    try:
        data = read_json(Path(path), Path(path).parent)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", code="unreadable_file") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: it is not JSON ({error})", code="damaged_stored_spec") from error
    return stored_job(data, path)


def stored_job(data: Any, path: Path) -> JobSpec:
    """The same of what has been read from there already."""
    if not isinstance(data, dict):
        raise UserError(f"{path} is damaged: it holds no spec", code="damaged_stored_spec")
    try:
        return JobSpec.model_validate(_known(data, JOB), context={STORED: True})
    except ValidationError as error:
        examination = Examination(set(), [])
        examination.examine(JobSpec, _known(data, JOB))
        place = Location(str(path))
        problems = [replace(found, location=place) for found in examination.problems]
        raise SpecError(problems or [Problem(errors_in_words(error), location=place, code="damaged_spec")]) from error


def _known(data: Any, shape: Shape | None) -> Any:
    """Stored data without the keys that this version does not know."""
    if shape is None:
        return data
    if isinstance(data, list):
        return [_known(item, shape.items) for item in data]
    if isinstance(data, dict) and shape.section is not None:
        legal = fields_of(shape.section)
        return {key: _known(value, legal[key]) for key, value in data.items() if key in legal}
    return data
