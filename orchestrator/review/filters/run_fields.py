"""What a run can be filtered, sorted and tabulated by: its state, names, times, metrics, and the fields of its spec.

state cause message id user sweep cell job note archived        text
name tag                                                        texts: also what it was called before
step progress goodput processes gpus launches checkpoint disk   numbers
age eta                                                         durations
created started ended                                           times
loss mfu …, train/accuracy      the last value of a metric, by its name or a short one
optimizer.lr, lr, tp            fields of the spec, by their path or a short name
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from orchestrator.files.stored_files import parse_json
from orchestrator.quantities import ACCEPTED_TIMES, age, clock_time, disk_size, seconds_in
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.table import STATES, Column, ordered
from orchestrator.run_directory.exits.causes import CAUSES

METRICS: Mapping[str, str] = {
    "loss": "train/loss",
    "validation": "validation/loss",
    "val": "validation/loss",
    "grad_norm": "train/grad_norm",
    "speed": "throughput/tokens_per_second",
    "tokens_per_second": "throughput/tokens_per_second",
    "step_seconds": "throughput/step_seconds",
    "mfu": "throughput/mfu",
    "memory": "memory/peak_bytes",
}
"""Short names of metrics."""

Kind = Literal["text", "texts", "number", "bytes", "duration", "moment", "spec"]
"""`spec`: a text that may be a number."""
Value = str | float | tuple[str, ...] | None

_SCALES = {"": 1.0, "%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BYTES = {"": 1.0, "b": 1.0} | {
    f"{letter}{end}": base ** (power + 1)
    for power, letter in enumerate("kmgtp")
    for end, base in (("", 1e3), ("b", 1e3), ("ib", 1024.0))
}
_UNITS: Mapping[Kind, tuple[Mapping[str, float], str]] = {
    "number": (_SCALES, "a number"),
    "spec": (_SCALES, "a number"),
    "bytes": (_BYTES, "a size like 10GB or 1.5TiB"),
    "duration": ({"": 1.0}, f"a time {ACCEPTED_TIMES}"),
}
_MOMENT = f"a date like 2026-11-01 or 2026-11-01T12:30, or an age {ACCEPTED_TIMES}"
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-z%]*)")
_DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?:[t ](\d\d?):(\d\d)(?::(\d\d))?)?", re.ASCII)
_MOST_SHOWN = 60


class QueryError(ValueError):
    """What is wrong with a query, in one line. `place`: where in it, counted from 0; None where that says nothing."""

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True)
class Field:
    """A value of every run. `name` as it was asked for, `key` as it is known."""

    name: str
    key: str
    kind: Kind
    value: Callable[[RunSummary], Value]

    def plain(self, run: RunSummary) -> Any:
        """The value for programs: as JSON has it, a field of the spec as its own value."""
        if self.key == "name":
            return run.title
        found = self.value(run)
        if isinstance(found, float) and not math.isfinite(found):
            return str(found)
        if self.kind == "spec" and isinstance(found, str):
            with contextlib.suppress(ValueError):
                return parse_json(found.encode())
        return found

    def shown(self, run: RunSummary) -> str:
        """The value in a table; `-` where there is none."""
        found = run.title if self.key == "name" else self.value(run)
        if found is None or found in ("", ()):
            return "-"
        if isinstance(found, tuple):
            return ", ".join(found)
        if isinstance(found, str):
            return _rounded(found) if self.kind == "spec" else found
        if math.isfinite(found):
            if self.kind == "bytes":
                return disk_size(int(found))
            if self.kind == "duration":
                return age(found) if self.key == "age" else clock_time(found)
            if self.kind == "moment":
                return datetime.fromtimestamp(found).strftime("%Y-%m-%d %H:%M")
        return _figure(found)


def _figure(number: float) -> str:
    """A number in a table: `0.0003`, `1234567`."""
    return f"{number:.0f}" if abs(number) < 1e15 and number == int(number) else f"{number:.6g}"


def _rounded(text: str) -> str:
    """A value of a spec in a table: numbers that are no whole ones, as JSON has them, are rounded."""
    number = as_number(text)
    return text if number is None or repr(number) != text else f"{number:.6g}"


def _age(run: RunSummary) -> float | None:
    return None if run.created is None else max(0.0, time.time() - run.created)


FIELDS: Mapping[str, tuple[Kind, Callable[[RunSummary], Value]]] = {
    "state": ("text", lambda run: run.state),
    "cause": ("text", lambda run: run.cause),
    "message": ("text", lambda run: run.message),
    "name": ("texts", lambda run: run.names),
    "id": ("text", lambda run: run.run.run_id),
    "user": ("text", lambda run: run.user),
    "sweep": ("text", lambda run: run.sweep),
    "cell": ("text", lambda run: run.cell),
    "job": ("text", lambda run: run.job_id),
    "note": ("text", lambda run: run.labels.note),
    "archived": ("text", lambda run: "true" if run.labels.archived else "false"),
    "tag": ("texts", lambda run: run.tags),
    "tags": ("texts", lambda run: run.tags),
    "step": ("number", lambda run: float(run.iteration)),
    "progress": ("number", lambda run: run.progress),
    "goodput": ("number", lambda run: run.goodput),
    "processes": ("number", lambda run: run.world_size),
    "gpus": ("number", lambda run: 0 if run.spec.get("runtime.device") == "cpu" else run.world_size),
    "launches": ("number", lambda run: float(run.launches)),
    "checkpoint": ("number", lambda run: run.checkpoints[-1] if run.checkpoints else None),
    "disk": ("bytes", lambda run: run.disk_bytes),
    "age": ("duration", _age),
    "eta": ("duration", lambda run: run.eta),
    "created": ("moment", lambda run: run.created),
    "started": ("moment", lambda run: run.launched),
    "ended": ("moment", lambda run: run.ended),
}
"""What a run has beside its metrics and its spec."""


CLOSED: Mapping[str, tuple[str, ...]] = {"state": STATES, "cause": ("", *CAUSES), "archived": ("true", "false")}
"""Fields of which all values are known."""


def check_values(field: Field, sign: str, values: Iterable[str], runs: Iterable[RunSummary]) -> None:
    """Raises QueryError, with what may have been meant, where a field of `CLOSED` has no such value, and no run has it,
    as one of another version. A part of a value will do for `:` and `~`.
    """
    if field.key not in CLOSED or sign in ("<", "<=", ">", ">="):
        return
    known = dict.fromkeys([*CLOSED[field.key], *(str(found) for run in runs if (found := field.value(run)))])
    for value in values:
        wanted = value.casefold()
        if not any(wanted in each.casefold() if sign in (":", "~") else wanted == each.casefold() for each in known):
            from orchestrator.spec.messages.suggestions import closest

            near = closest(value, known) or [each for each in known if value and each.startswith(wanted)]
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(filter(None, known))}"
            raise QueryError(f"there is no {field.key} {short(value) or 'without a name'}: {hint}")


def field_of(
    name: str,
    runs: Iterable[RunSummary],
    values: Sequence[str] = (),
    *,
    otherwise: str = "to look for the text itself, put it in quotes",
) -> Field:
    """The field that a name means, where it is compared with `values`. What only some of `runs` have, as a metric of
    one's own or a field of an older version, can be meant too. Raises QueryError, with what may have been meant, else
    with what to do `otherwise`.
    """
    key = name.lower()
    if key in FIELDS:
        kind, value = FIELDS[key]
        return Field(name, key, kind, value)
    if key in METRICS or "/" in name:
        return _metric(name, METRICS.get(key, name))
    from orchestrator.spec.documents.field_names import resolve  # takes longer to import than thousands of runs to list

    path = resolve(name, list(values)) or resolve(name)
    if path is None and any(name in run.spec for run in runs):
        path = name
    if path is not None:
        return Field(name, path, "spec", lambda run: run.spec.get(path))
    metrics = {metric for run in runs for metric in run.values if name in (metric, metric.rpartition("/")[2])}
    if len(metrics) == 1:
        return _metric(name, metrics.pop())
    if metrics:
        raise QueryError(f"{short(name)} could be {' or '.join(short(metric) for metric in sorted(metrics)[:3])}")
    said = _hint(name) or otherwise
    raise QueryError(f"there is no field {short(name)}: {said}".splitlines()[0])


def _hint(name: str) -> str | None:
    """What may have been meant by a name that means nothing."""
    from orchestrator.spec.documents.field_names import hint
    from orchestrator.spec.messages.suggestions import closest

    own = closest(name, [*FIELDS, *METRICS])
    return f"did you mean {' or '.join(own)}?" if own else hint(name)


def _metric(name: str, metric: str) -> Field:
    return Field(name, metric, "number", lambda run: run.values.get(metric))


def in_order(runs: Iterable[RunSummary], field: Field, *, falling: bool) -> list[RunSummary]:
    """The runs by a field, those without a value last. A field of the spec is ordered by number where all values are
    numbers.
    """
    runs = list(runs)
    value = field.value
    if field.kind == "spec":
        numbers = {run.key: as_number(text) for run in runs if isinstance(text := value(run), str)}
        if all(number is not None for number in numbers.values()):
            return ordered(runs, Column(field.name, field.name, lambda run: numbers.get(run.key)), falling=falling)
    return ordered(runs, Column(field.name, field.name, lambda run: _comparable(value(run))), falling=falling)


def _comparable(value: Value) -> str | float | None:
    return ", ".join(value) if isinstance(value, tuple) else value


def as_number(text: str | None) -> float | None:
    """A text of a spec as a number; None where it is none."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def number_of(field: Field, text: str) -> float:
    """What a person wrote as a value of a field that is a number, with its unit. Raises QueryError."""
    units, what = _UNITS[field.kind]
    if field.kind == "duration" and (seconds := seconds_in(text)) is not None:
        return seconds
    plain = text.strip().lower().replace("_", "")
    if plain in ("nan", "inf", "-inf"):
        return float(plain)
    match = _NUMBER.fullmatch(plain)
    if match is None or match.group(2) not in units:
        raise QueryError(f"{short(field.name)} expects {what}, not {short(text) or 'nothing'}")
    return float(match.group(1)) * units[match.group(2)]


def period_of(field: Field, text: str) -> tuple[float, float]:
    """The first second of what a person wrote as a time, and the first one after it: `2026-11-01` is a whole day, an
    age the moment so long ago, also with `ago`. Raises QueryError.
    """
    plain = text.strip().lower()
    try:
        if (date := _DATE.fullmatch(plain)) is not None:
            year, month, day, hour, minute, second = (int(part) for part in date.groups(default="0"))
            begin = datetime(year, month, day, hour, minute, second)
            unit = "days" if date[4] is None else "minutes" if date[6] is None else "seconds"
            return begin.timestamp(), (begin + timedelta(**{unit: 1})).timestamp()
        if plain[-1:].isalpha() and (seconds := seconds_in(plain.removesuffix("ago"))) is not None:
            begun = time.time() - seconds
            return begun, begun
    except (ValueError, OverflowError, OSError):  # no day of the calendar, or one before or after all that it knows
        pass
    raise QueryError(f"{short(field.name)} expects {_MOMENT}, not {short(text) or 'nothing'}")


def example_of(name: str) -> str:
    """A value of a field, for a message."""
    key = name.lower()
    if key not in FIELDS:
        return "3"
    kind = FIELDS[key][0]
    of_its_own = {"state": "failed", "cause": "nan"}
    of_its_kind = {"text": "name", "texts": "name", "duration": "2d", "moment": "2d", "bytes": "10GB"}
    return of_its_own.get(key, of_its_kind.get(kind, "3"))


def short(text: str) -> str:
    """A text that a person wrote, as a message repeats it."""
    plain = " ".join(text.split())
    return plain if len(plain) <= _MOST_SHOWN else f"{plain[: _MOST_SHOWN - 1]}…"
