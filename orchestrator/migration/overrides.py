"""Values that a person gives beside what is migrated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import yaml

from orchestrator.errors import SpecError
from orchestrator.migration.report import LOUD, WRITE_IT, Migration, Source
from orchestrator.spec.documents.composition import apply_override, compose_text
from orchestrator.spec.documents.field_names import overridden
from orchestrator.spec.documents.plain_data import to_plain
from orchestrator.spec.presets import preset_names, preset_text
from orchestrator.spec.schema.shape import shape_at
from orchestrator.spec.yaml.reader import LocatedValue

PRESET, RANDOM, TOKENIZER = "model.preset", "data.random_tokens", "data.tokenizer.type"
_ALTERNATIVES: tuple[tuple[str, ...], ...] = (
    ("schedule.train_iters", "schedule.train_samples", "schedule.train_tokens"),
    ("schedule.lr_warmup_iters", "schedule.lr_warmup_samples", "schedule.lr_warmup_fraction"),
    ("schedule.lr_decay_iters", "schedule.lr_decay_samples"),
    ("schedule.lr_wsd_decay_iters", "schedule.lr_wsd_decay_samples"),
    ("batch.global_batch_size", "batch.num_micro_batches"),
)
"""Fields of which one takes the place of another."""
_FILES = ("data.tokenizer.path", "data.tokenizer.merges")


def override(migration: Migration, assignment: str) -> None:
    """Put `KEY=VALUE` over what is migrated; the schema checks the value.

    Raises SpecError for what is none, and for a key that is no field.
    """
    composition = compose_text("{}", "--set")
    apply_override(composition, assignment)
    if problems := composition.problems or to_plain(composition.root, composition.document.shape).problems:
        raise SpecError(problems=problems)
    path = overridden(assignment)
    value: Any = composition.root
    for key in path.split("."):
        value = value.content[key]
    for each, plain in _fields(path, _plain(value)):
        _put(migration, each, plain)


def _fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that a value is of: a mapping goes over those of its section that it names, and leaves the others."""
    shape = shape_at(tuple(path.split(".")))
    if isinstance(value, dict) and value and shape is not None and shape.kind == "section":
        for key, inner in value.items():
            yield from _fields(f"{path}.{key}", inner)
    else:
        yield path, value


def _put(migration: Migration, path: str, plain: Any) -> None:
    _supply(migration, path)
    if plain is not None:
        _supply_alternatives(migration, path, plain)
    section = next((each for each in _sections_of(path) if each in migration.values), None)
    if section is not None and migration.values[section] == WRITE_IT:
        _supply(migration, section)
        section = None
    if section is not None:
        _put_into(migration.values[section], path.removeprefix(f"{section}.").split("."), plain)
        migration.sources[section] = Source(f"{migration.sources[section].comment}, and --set")
    elif plain is not None:
        migration.values[path] = plain
        migration.sources[path] = Source("--set")


def _sections_of(path: str) -> Iterable[str]:
    """The paths of the mappings that a field is in."""
    parts = path.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def _put_into(held: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        held = held.setdefault(key, {})
    held.pop(keys[-1], None)
    if value is not None:
        held[keys[-1]] = value


def _supply(migration: Migration, path: str) -> None:
    """Take back what is said of a field that now has a value: nobody has to look at its flag any more."""
    migration.drop(path)
    migration.accounts = [
        replace(each, outcome="no_effect", reason="--set says it")
        if each.path is not None and f"{each.path}.".startswith(f"{path}.") and each.outcome in LOUD
        else each
        for each in migration.accounts
    ]


def _supply_alternatives(migration: Migration, path: str, value: Any) -> None:
    """Take back what has to be written no more where this value is there."""
    needless = {other for group in _ALTERNATIVES if path in group for other in group}
    unsaid: set[str] = set()
    if path == TOKENIZER:
        needless |= set(_FILES)  # the schema says which of them this type needs
    elif path == RANDOM and value is True:
        needless |= {"data.blend", *_FILES}
        unsaid = {TOKENIZER}
    elif path == PRESET and value in preset_names():
        needless = unsaid = {f"model.{name}" for name in yaml.safe_load(preset_text(value))}
    for other in needless:
        if migration.is_open(other):
            _supply(migration, other)
    for other in unsaid:
        if other in migration.sources and migration.sources[other].is_default:
            migration.drop(other)


def _plain(written: LocatedValue) -> Any:
    content = written.content
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_plain(item) for item in content]
    return content
