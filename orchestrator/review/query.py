"""What a person writes into the filter of the runs: `state:failed loss<3 -user:ann "a name"`. All parts must match.

word  "some words"          anywhere in the name, the id, the sweep, the cell, the user, or why it ended
state:failed  cause:nan     text: `:` holds, `=` is, `!=` is not; also name, id, user, sweep, cell
loss<3  throughput/mfu>0.4  the last value of a metric, by its name or a short one
optimizer.lr>=1e-4  tp=2    a field of the spec, by its path or a short name
age<2d  eta>1h  step>100    what the table shows; also progress, goodput, processes, gpus, launches
-part                       the part does not hold
"""

from __future__ import annotations

import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.review.summary import RunSummary
from orchestrator.spec.documents.field_names import hint, resolve
from orchestrator.spec.messages.suggestions import closest

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

_LONGEST = 2000
_MOST_PARTS = 50
_PART = re.compile(r"([A-Za-z_][\w./-]*)(<=|>=|!=|[:=<>])(.*)", re.DOTALL)
_TOKEN = re.compile(r'(?:"[^"]*"|[^\s"])+')
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-z%]*)")
_SCALES = {"": 1.0, "%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Holds = Callable[[RunSummary], bool]
Words = Callable[[RunSummary], str | None]
Number = Callable[[RunSummary], float | None]


class QueryError(ValueError):
    """What is wrong with a query, in one line."""


_WORDS: Mapping[str, Words] = {
    "state": lambda run: run.state,
    "cause": lambda run: run.cause,
    "message": lambda run: run.message,
    "name": lambda run: run.run.name,
    "id": lambda run: run.run.run_id,
    "user": lambda run: run.user,
    "sweep": lambda run: run.sweep,
    "cell": lambda run: run.cell,
    "job": lambda run: run.job_id,
}
_NUMBERS: Mapping[str, Number] = {
    "step": lambda run: float(run.iteration),
    "progress": lambda run: run.progress,
    "goodput": lambda run: run.goodput,
    "processes": lambda run: run.world_size,
    "gpus": lambda run: 0 if run.spec.get("runtime.device") == "cpu" else run.world_size,
    "launches": lambda run: float(run.launches),
}
_DURATIONS: Mapping[str, Number] = {
    "age": lambda run: None if run.created is None else max(0.0, time.time() - run.created),
    "eta": lambda run: run.eta,
}


@dataclass(frozen=True)
class _Part:
    text: str
    holds: Holds


def select(runs: Sequence[RunSummary], query: str) -> list[RunSummary]:
    """The runs for which a query holds, in their order. Raises QueryError when it makes no sense."""
    parts = [_read(token, runs) for token in _tokens(query)]
    return [run for run in runs if all(part.holds(run) for part in parts)]


def quoted(text: str) -> str:
    """A text as a value of a query; quotes in it become what stands between words."""
    plain = text.replace('"', " ")
    return f'"{plain}"' if not plain or re.search(r"\s", plain) else plain


def _tokens(query: str) -> list[str]:
    if len(query) > _LONGEST:
        raise QueryError(f"a filter has at most {_LONGEST} characters")
    if query.count('"') % 2:
        raise QueryError('a quote is not closed: write "some words"')
    found = _TOKEN.findall(query)
    if len(found) > _MOST_PARTS:
        raise QueryError(f"a filter has at most {_MOST_PARTS} parts, not {len(found)}")
    return found


def _read(token: str, runs: Sequence[RunSummary]) -> _Part:
    negated = token.startswith("-") and len(token) > 1
    text = token[1:] if negated else token
    match = _PART.fullmatch(text)
    holds = _anywhere(text.replace('"', "")) if match is None else _field(*match.groups(), runs=runs)
    return _Part(token, (lambda run: not holds(run)) if negated else holds)


def _anywhere(words: str) -> Holds:
    wanted = words.casefold()

    def holds(run: RunSummary) -> bool:
        texts = (run.key, run.description, run.message, run.sweep, run.cell, run.user, run.job_id)
        return any(wanted in text.casefold() for text in texts if text)

    return holds


def _field(name: str, sign: str, rest: str, *, runs: Sequence[RunSummary]) -> Holds:
    value = rest.replace('"', "")
    if not value and '"' not in rest:
        raise QueryError(f"{_short(name + sign)}: a value is missing, as in {name}{sign}{_example(name)}")
    key = name.lower()
    if key in _WORDS:
        return _words(name, _WORDS[key], sign, value)
    if key in _DURATIONS:
        return _number(_DURATIONS[key], sign, _parsed(name, value, _SECONDS, "a time like 30min, 12h or 2d"))
    if key in _NUMBERS:
        return _number(_NUMBERS[key], sign, _parsed(name, value, _SCALES, "a number"))
    if key in METRICS or "/" in name:
        metric = METRICS.get(key, name)
        wanted = _parsed(name, value, _SCALES, "a number")
        return _number(lambda run: run.values.get(metric), sign, wanted)
    return _of_the_spec(_path(name, value, runs), name, sign, value)


def _path(name: str, value: str, runs: Iterable[RunSummary]) -> str:
    """The field of the spec that is meant; what an older version wrote can be meant too."""
    found = resolve(name, [value]) or resolve(name)
    if found is not None:
        return found
    if any(name in run.spec for run in runs):
        return name
    own = closest(name, [*_WORDS, *_NUMBERS, *_DURATIONS, *METRICS])
    said = f"did you mean {' or '.join(own)}?" if own else hint(name)
    raise QueryError(
        f"there is no field {_short(name)}: {said or 'to look for the text itself, put it in quotes'}".splitlines()[0]
    )


def _words(name: str, words: Words, sign: str, value: str) -> Holds:
    if sign in _ORDERS:
        raise QueryError(f"{name} is text: write {name}:{_short(value) or 'word'}")
    wanted = value.casefold()
    if sign == ":":
        return lambda run: wanted in (words(run) or "").casefold()
    if sign == "=":
        return lambda run: (words(run) or "").casefold() == wanted
    return lambda run: (words(run) or "").casefold() != wanted


def _number(number: Number, sign: str, wanted: float) -> Holds:
    """What was not measured is neither less nor greater, nor equal."""

    def holds(run: RunSummary) -> bool:
        found = number(run)
        return found is not None and _compare(found, sign, wanted)

    return holds


def _of_the_spec(path: str, name: str, sign: str, value: str) -> Holds:
    if sign in _ORDERS:
        wanted = _parsed(name, value, _SCALES, "a number")
        return _number(lambda run: _as_number(run.spec.get(path)), sign, wanted)
    words = value.casefold()
    try:
        as_number = _parsed(name, value, _SCALES, "a number")
    except QueryError:
        as_number = None

    def holds(run: RunSummary) -> bool:
        found = run.spec.get(path)
        if found is None:
            return sign == "!="
        number = _as_number(found)
        if as_number is not None and number is not None:
            return _compare(number, sign, as_number)
        same = found.casefold() == words
        return words in found.casefold() if sign == ":" else same if sign == "=" else not same

    return holds


def _compare(found: float, sign: str, wanted: float) -> bool:
    if sign in _ORDERS:
        return _ORDERS[sign](found, wanted)
    same = math.isclose(found, wanted, rel_tol=1e-9) or (math.isnan(found) and math.isnan(wanted))
    return not same if sign == "!=" else same


def _as_number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _parsed(name: str, value: str, units: Mapping[str, float], what: str) -> float:
    plain = value.strip().lower().replace("_", "")
    if plain in ("nan", "inf", "-inf"):
        return float(plain)
    match = _NUMBER.fullmatch(plain)
    if match is None or match.group(2) not in units:
        raise QueryError(f"{_short(name)} expects {what}, not {_short(value) or 'nothing'}")
    return float(match.group(1)) * units[match.group(2)]


def _example(name: str) -> str:
    key = name.lower()
    return {"state": "failed", "cause": "nan"}.get(key, "2d" if key in _DURATIONS else "name" if key in _WORDS else "3")


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 60 else f"{plain[:59]}…"
