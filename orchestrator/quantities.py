"""Bytes, times and counts as a person reads them."""

from __future__ import annotations

import time


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
