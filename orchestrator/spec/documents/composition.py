"""One tree of written values from several sources: files and what they extend, overrides, a preset.

Mappings merge key by key, everything else is replaced by what comes later, and `null` takes a key back to its default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import Location, Problem
from orchestrator.fields.formatting import dotted, shorten, show
from orchestrator.spec.documents.field_names import hint as hint_of
from orchestrator.spec.documents.field_names import overridden, short_names
from orchestrator.spec.messages.document import JOB_SPEC, Document
from orchestrator.spec.messages.suggestions import closest
from orchestrator.spec.presets import preset_names, preset_text
from orchestrator.spec.schema.shape import Shape, shape_at
from orchestrator.spec.yaml.reader import MAX_DEPTH, UNREADABLE, LocatedValue, parse_yaml, read_text

MAX_EXTENDS = 16
_LIST_ENTRY = re.compile(r"\s*([\w.]+)\[\d+\]")
_SET_APART = ("extends", "base", "sweep")


@dataclass
class Composition:
    """What was written, merged, and what was wrong on the way."""

    root: LocatedValue
    document: Document[Any] = JOB_SPEC
    problems: list[Problem] = field(default_factory=list)
    incomplete: list[tuple[str | int, ...]] = field(default_factory=list)
    """Places below which more would have been written, had a source been readable."""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """(source, text) of everything that a person wrote, in the order of merging."""
    sweep: LocatedValue | None = None
    """What a file says of a sweep, which is no part of a job."""

    def add(self, written: LocatedValue | None) -> None:
        """Merge a source over what there is."""
        if written is None:
            self.incomplete.append(())
        elif isinstance(written.content, dict):
            self.root = merge(self.root, written)

    def refuse(self, problem: Problem) -> None:
        """Note a problem that leaves the document incomplete."""
        self.problems.append(problem)
        self.incomplete.append(())


def compose_files(paths: Sequence[Path], document: Document[Any] = JOB_SPEC) -> Composition:
    """Files in order, each over what it extends."""
    composition = Composition(LocatedValue({}, Location(str(paths[0]) if paths else "job")), document)
    for path in paths:
        _add_file(composition, Path(path), [], None)
    return composition


def compose_text(text: str, source: str, document: Document[Any] = JOB_SPEC) -> Composition:
    """One text that is not in a file; what it extends is found from the working directory."""
    composition = Composition(LocatedValue({}, Location(source)), document)
    _add_text(composition, text, Path(source), [])
    return composition


def merge(under: LocatedValue, over: LocatedValue) -> LocatedValue:
    """`over` on top of `under`."""
    if not isinstance(under.content, dict) or not isinstance(over.content, dict):
        return over
    content = dict(under.content)
    for key, value in over.content.items():
        content[key] = merge(content[key], value) if key in content else value
    return LocatedValue(content, over.location)


def _add_file(
    composition: Composition, path: Path, chain: list[Path], place: Location | None, key: str = "extends"
) -> None:
    """`chain` holds the files that led here through `extends` or `base`, `place` and `key` the last of these keys."""
    if any(_same_file(path, earlier) for earlier in chain):
        circle = " → ".join(str(step) for step in [*chain, path])
        message = f"goes round in a circle: {circle}"
        composition.refuse(Problem(message, (key,), location=place, code="circular_extends"))
        return
    if len(chain) > MAX_EXTENDS:
        message = f"a chain of more than {MAX_EXTENDS} files"
        composition.refuse(Problem(message, (key,), location=place, code="long_extends_chain"))
        return
    text = read_text(path, composition.document.noun)
    if isinstance(text, Problem):
        if place is not None:
            text = replace(text, message=f"{path}: {text.message}", paths=(key,), location=place)
        composition.refuse(text)
        return
    _add_text(composition, text, path, chain)


def _add_text(composition: Composition, text: str, path: Path, chain: list[Path]) -> None:
    parsed = parse_yaml(text, str(path), composition.document.noun)
    composition.problems.extend(parsed.problems)
    composition.incomplete.extend(parsed.incomplete)
    root, apart = parsed.root, composition.document.set_apart
    if root is not None:
        root = _top_level(composition, root, text)
    if root is not None and isinstance(root.content, dict) and not root.content.keys().isdisjoint(apart):
        content = dict(root.content)
        extends, base, sweep = (content.pop(key, None) if key in apart else None for key in _SET_APART)
        if base is not None and sweep is None:  # a file that holds nothing but a sweep, and names its job
            sweep, content = LocatedValue(content, base.location), {}
        root = LocatedValue(content, root.location)
        for key, other in (("extends", extends), ("base", base)):
            if other is not None:
                _extend(composition, key, other, path, chain)
        if sweep is not None:
            composition.sweep = merge(composition.sweep, sweep) if composition.sweep is not None else sweep
    composition.texts.append((str(path), text))
    composition.add(root)


def _top_level(composition: Composition, root: LocatedValue, text: str) -> LocatedValue | None:
    if isinstance(root.content, dict):
        return root
    if root.content is UNREADABLE:
        return None
    place, document = root.location, composition.document
    if root.content is None:
        message = "holds nothing but comments" if text.strip() else "is empty"
        hint = f"`{document.written_by}` writes a {document.noun}"
        composition.problems.append(Problem(message, hint=hint, location=Location(place.source), code="empty_document"))
        return None
    kind = "a list" if isinstance(root.content, list) else f"the text {show(root.content)}"
    message = f"a {document.noun} is a mapping with keys such as {document.such_as}, not {kind}"
    composition.problems.append(Problem(message, location=place, code="not_a_mapping"))
    return None


def _extend(composition: Composition, key: str, extends: LocatedValue, path: Path, chain: list[Path]) -> None:
    value = extends.text if extends.text is not None else extends.content
    if extends.content is None or extends.content is UNREADABLE:
        return
    if not isinstance(value, str) or not value or "\0" in value:
        message = "expects the path of one file"
        composition.refuse(Problem(message, (key,), location=extends.location, code="wrong_type"))
        return
    _add_file(composition, path.parent / value, [*chain, path], extends.location, key)


def _same_file(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def apply_override(composition: Composition, override: str) -> None:
    """Put one `a.b.c=value` over what is written. The value is YAML; where the schema wants text it is text."""
    place = Location(shorten(f"--set {override}", 1000))
    key, separator, text = override.partition("=")
    is_of_a_job = composition.document is JOB_SPEC
    path = tuple(overridden(override).split(".") if is_of_a_job else (part.strip() for part in key.split(".")))
    if not separator or not all(path) or len(path) > MAX_DEPTH:
        hint = "write --set batch.micro_batch_size=4"
        composition.problems.append(Problem("is not KEY=VALUE", hint=hint, location=place, code="override_syntax"))
        return
    if is_of_a_job and path[0] in short_names():
        message = f"is the name of several fields, of which none takes {show(text.strip())}"
        hint = f"{hint_of(path[0])}: write it in full"
        composition.problems.append(Problem(message, path, hint, place, "ambiguous_key"))
        return
    if entry := _LIST_ENTRY.match(key):
        name = entry.group(1)
        like = "[{path: data/a, weight: 1}, {path: data/b, weight: 2}]" if name == "data.blend" else "[…, …]"
        hint = f"write all of it: --set '{name}={like}'"
        composition.problems.append(Problem("a list is replaced whole", (name,), hint, place, "override_of_list_item"))
        return
    if path == ("extends",):
        message = "can only be written in a file"
        composition.problems.append(Problem(message, ("extends",), location=place, code="override_of_extends"))
        return
    value, problems = _override_value(path, text.strip(), place, composition.document.shape)
    composition.problems.extend(problems)
    composition.texts.append((place.source, ""))
    for part in reversed(path):
        value = LocatedValue({part: value}, place)
    composition.add(value)


def _override_value(
    path: tuple[str, ...], text: str, place: Location, root: Shape
) -> tuple[LocatedValue, list[Problem]]:
    shape = shape_at(path, root)
    if shape is not None and shape.kind == "text" and text and text[0] not in "\"'" and text not in ("null", "~"):
        return LocatedValue(text, place, text), []
    parsed = parse_yaml(text, place.source)
    problems = [replace(problem, paths=(dotted(path),), location=place) for problem in parsed.problems]
    value = parsed.root
    if value is None or parsed.incomplete:
        value = LocatedValue(UNREADABLE, place)
    return _all_at(value, place), problems


def _all_at(written: LocatedValue, place: Location) -> LocatedValue:
    content = written.content
    if isinstance(content, dict):
        content = {key: _all_at(value, place) for key, value in content.items()}
    elif isinstance(content, list):
        content = [_all_at(item, place) for item in content]
    return LocatedValue(content, place, written.text, written.size)


def apply_preset(composition: Composition) -> None:
    """Put the model preset, if one is written, under the model section."""
    content = composition.root.content
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(content, dict) or model is None or not isinstance(model.content, dict):
        return
    preset = model.content.get("preset")
    if preset is None or preset.content is None:
        return
    name = preset.text if preset.text is not None else preset.content
    names = preset_names()
    if not isinstance(name, str) or name not in names:
        composition.incomplete.append(("model",))
        if preset.content is not UNREADABLE:
            composition.problems.append(_unknown_preset(name, names, preset.location))
        return
    under = parse_yaml(preset_text(name), f"preset {name}").root
    assert under is not None, "a shipped preset is legal YAML"
    content = {**content, "model": merge(under, model)}
    composition.root = LocatedValue(content, composition.root.location)


def _unknown_preset(name: object, names: list[str], place: Location) -> Problem:
    near = closest(name, names) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(near)}?\n" if near else ""
    hint = f"{hint}presets: {', '.join(names)}"
    return Problem(f"there is no preset {show(name)}", ("model.preset",), hint, place, "unknown_preset")
