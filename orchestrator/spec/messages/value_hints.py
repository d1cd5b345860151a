"""What to write instead of a value of another kind."""

from __future__ import annotations

import re
import shlex
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from orchestrator.fields.base import Section
from orchestrator.fields.formatting import as_yaml
from orchestrator.spec.presets import preset_names
from orchestrator.spec.schema.foreign_names import FOREIGN_VALUES
from orchestrator.spec.schema.shape import Shape, shape_at
from orchestrator.spec.sections.chat import BUILT_IN_TEMPLATES

_SLURM_CLOCK = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d{1,2}):(\d{1,2})|(\d{1,6})-(\d{1,2})", re.ASCII)
_BYTES = re.compile(r"(\d{1,12})\s*([KMGT])(?:i?B)?", re.ASCII | re.IGNORECASE)
_OFF = ("false", "no", "off", "none")


def foreign(value: Any) -> str | None:
    """What to write for a value of another tool."""
    return FOREIGN_VALUES.get(value.lower().replace("-", "_")) if isinstance(value, str) else None


def rewritten(expected: str, value: Any) -> str | None:
    """SLURM's `1-00:00:00` as a duration, and `500GB` as a size of memory: how they are written here."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    if expected.startswith("a duration") and (clock := _SLURM_CLOCK.fullmatch(text)):
        days, hours, minutes, seconds, whole_days, more_hours = clock.groups()
        parts = {"d": days or whole_days, "h": hours or more_hours, "m": minutes, "s": seconds}
        duration = "".join(f"{int(part)}{unit}" for unit, part in parts.items() if int(part or 0))
        return f"write {duration}" if duration else None
    if expected.startswith("a size of memory") and (size := _BYTES.fullmatch(text)):
        return f"write {size.group(1)}{size.group(2).upper()}"
    return None


def kind_hint(value: Any, place: tuple[str | int, ...], root: Shape) -> str | None:
    """For a value that is of no kind that its place takes."""
    shape, name = shape_at(place, root), str(place[-1]) if place else ""
    if shape is not None and shape.section is not None and name:
        return _section_hint(value, name, shape.section)
    meant = foreign(value)
    if meant is not None and meant.partition(" ")[0] in place:
        return meant
    if shape is not None and shape.kind == "list":
        return _list_hint(value if meant is None else meant.partition(" ")[0], name, shape)
    return "numbers are written without thousands separators" if isinstance(value, str) and "," in value else None


def _section_hint(value: Any, name: str, section: type[Section]) -> str:
    """A section that is written like a switch or a choice: how it is written."""
    if value is False or (isinstance(value, str) and value.lower() in _OFF):
        return f"leave {name} out"
    fields = section.model_fields
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return f"write the keys of {name} without dashes"
    if value in preset_names() and "preset" in fields:
        return f"write {name}: {{preset: {value}}}"
    chosen = {key: as_yaml(value) for key, field in fields.items() if value in _choices(key, field.annotation)}
    needed = {key: "…" for key, field in fields.items() if field.is_required()}
    if chosen or needed:
        return f"write {name}: {_mapping({**needed, **chosen})}"
    example = next(({key: as_yaml(field.default)} for key, field in fields.items() if _is_plain(field)), None)
    differs = f", or what is to differ from them, as in {name}: {_mapping(example)}" if example else ""
    return f"write {name}: {{}} for its defaults{differs}"


def _list_hint(value: Any, name: str, shape: Shape) -> str | None:
    """One item where a list of such items is expected."""
    takes_it = shape.items is not None and shape.items.kind in ("text", "scalar") and isinstance(value, str | int)
    if not takes_it or not name:
        return None
    return f"write {name}: [{', '.join(as_yaml(item) for item in _items(value, name))}]"


def _items(value: Any, name: str) -> list[Any]:
    """A command's line is a program and its arguments; whatever else is one item."""
    if name != "command" or not isinstance(value, str):
        return [value]
    try:
        return shlex.split(value) or [value]
    except ValueError:  # a quote that is not closed
        return [value]


def _choices(key: str, annotation: Any) -> tuple[Any, ...]:
    """Words that a key takes, which nobody means for another one."""
    if key == "template":
        return BUILT_IN_TEMPLATES
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in _choices("", part))


def _is_plain(field: FieldInfo) -> bool:
    return isinstance(field.default, str | int | float)


def _mapping(pairs: dict[str, str]) -> str:
    return f"{{{', '.join(f'{key}: {value}' for key, value in pairs.items())}}}"
