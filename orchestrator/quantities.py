"""Bytes, times and counts as a person reads them, and times as a person writes them."""

from __future__ import annotations

import re
import time

ACCEPTED_TIMES = "like 30min, 36h, 7 days or 1w2d"
"""For a message."""
_UNITS_OF_TIME = {
    name: seconds
    for names, seconds in (
        ("s sec secs second seconds", 1.0),
        ("m min mins minute minutes", 60.0),
        ("h hr hrs hour hours", 3600.0),
        ("d day days", 86400.0),
        ("w wk week weeks", 7 * 86400.0),
    )
    for name in names.split()
}
_PART_OF_A_TIME = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([a-z]+)\s*", re.ASCII)
_LONGEST_TIME = 80


def memory_size(count: float) -> str:
    """Bytes of memory: `76.6 GiB`, `35.2 MiB`."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def disk_size(count: float) -> str:
    """Bytes on a disk: `24.4 GB`, `6.46 TB`."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{amount(count / size)} {unit}"
    return f"{amount(count / 1e3)} kB"


def amount(number: float, digits: int = 3) -> str:
    """`1,230`, `12.3`, `0.00123`."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.{digits}g}"


def short_count(number: float, digits: int = 4) -> str:
    """`774.3M`, `1.5B`, `12.3k`, `999`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.{digits}g}{unit}"
    return f"{number:.{digits}g}"


def time_span(seconds: float) -> str:
    """An estimated time, in one unit: `1,230 days`, `3.2 days`, `4.1 h`, `12 min`, `9.5 s`, `4.2 ms`."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{amount(seconds / size)} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def duration(seconds: float) -> str:
    """A measured time, in its two largest units: `2 d 3 h`, `4 min 5 s`, `34.8 s`, `0.37 s`."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    parts = _units(round(seconds))
    largest = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[largest : largest + 2] if count)


def age(seconds: float) -> str:
    """How long ago something was, in the largest unit: `3 d`, `5 min`, `12 s`. By a wrong clock it may be to come."""
    return next((f"{count} {unit}" for count, unit in _units(max(0, int(seconds))) if count), "0 s")


def clock_time(seconds: float) -> str:
    """As a clock that runs shows it: `0:01:05`, or `2d 3:00:00`."""
    (days, _), (hours, _), (minutes, _), (rest, _) = _units(round(seconds))
    clock = f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{days}d {clock}" if days else clock


def seconds_in(text: str) -> float | None:
    """A time that a person typed, in seconds: `90`, `90s`, `1.5h`, `1d12h`, `7 days`, `2 weeks`; None for anything
    else.
    """
    rest = text.strip().lower()
    if not rest or len(rest) > _LONGEST_TIME:
        return None
    if rest.isascii() and rest.isdecimal():
        return float(rest)
    seconds = 0.0
    while rest:
        part = _PART_OF_A_TIME.match(rest)
        if part is None or part[2] not in _UNITS_OF_TIME:
            return None
        seconds += float(part[1]) * _UNITS_OF_TIME[part[2]]
        rest = rest[part.end() :]
    return seconds


def spec_duration(seconds: int) -> str:
    """As a job file has it: `1d12h`; `90s` is `1m30s`."""
    return "".join(f"{count}{unit[0]}" for count, unit in _units(seconds) if count) or "0s"


def timestamp(moment: float | None = None) -> str:
    """`2026-01-31 12:00:00` by this machine's clock, of seconds since the epoch or of now."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _units(seconds: int) -> list[tuple[int, str]]:
    """Whole days, hours, minutes and seconds."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return [(hours // 24, "d"), (hours % 24, "h"), (minutes, "min"), (rest, "s")]
