"""What fields are called in `--set` and in sweeps: in full, by their last word where that says it all, or in short."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import ShortName
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.messages.suggestions import closest, suggest
from orchestrator.spec.schema.shape import declared, field_at, leaf_paths, meant_by_name, sections, shape_at
from orchestrator.spec.yaml.reader import resolve_scalar


@cache
def short_names(root: type[Section] = JobSections) -> dict[str, str]:
    """The dotted path of the field that each short name means."""
    return {short.name: path for path, short in declared(ShortName, root)}


def resolve(name: str, values: Sequence[object] = ()) -> str | None:
    """The dotted path of the field that a name means; None when it means none, or several. A short name that is
    another field's own means that one where it alone takes all of `values`, and none where neither takes their words.
    """
    short = short_names().get(name)
    if short is not None:
        own = _by_last_word().get(name, [])
        if not own or all(value is None or isinstance(value, int | float) for value in values):
            return short
        return next((path for path in (short, *own) if all(_takes(path, value) for value in values)), None)
    if shape_at(tuple(name.split("."))) is not None:
        return name
    paths = _by_last_word().get(name, [])
    return paths[0] if len(paths) == 1 else None


def overridden(override: str) -> str:
    """The dotted path of the field that `KEY=VALUE` is about; the key itself where that means no field, or several."""
    written, _, text = override.partition("=")
    key = ".".join(part.strip() for part in written.split("."))
    return resolve(key, [resolve_scalar(text.strip().strip("\"'"))]) or key


def hint(name: str) -> str | None:
    """What may have been meant by a name that means no field, or several."""
    short = short_names()
    paths = [*([short[name]] if name in short else []), *_by_last_word().get(name, [])]
    if len(paths) > 1:
        return f"{name} could be {' or '.join(paths)}"
    *place, key = name.split(".")
    legal = [path.rpartition(".")[2] for path in _all_paths() if path.split(".")[:-1] == place]
    said, _ = suggest(key, tuple(place), [*legal, *(short if not place else ())])
    if said is None and place:
        near = closest(".".join(place), {path.rpartition(".")[0] for path in _all_paths()} - {""})
        said = f"did you mean {' or '.join(f'{section}.{key}' for section in near)}?" if near else None
    return said


def _takes(path: str, value: object) -> bool:
    """Whether a field takes a value, as far as its own type says."""
    field = field_at(path)
    annotation: Any = Annotated[field.annotation, field]
    try:
        TypeAdapter[Any](annotation).validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def short_name(path: str) -> str:
    """What a field is called in the name of a cell: the shortest that means this field."""
    last = path.rpartition(".")[2]
    for name, meant in short_names().items():
        if meant == path and name not in last.split("_"):  # `hidden` says less than `hidden_size`
            return name
    return last if resolve(last) == path else path


@cache
def _by_last_word() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in _all_paths():
        found.setdefault(path.rpartition(".")[2], []).append(path)
    return {word: meant_by_name(paths) for word, paths in found.items()}


@cache
def _all_paths() -> tuple[str, ...]:
    return (*leaf_paths(), *(".".join(path) for path in sections() if path))
