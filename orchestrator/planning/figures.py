"""Figures as a person reads them."""

from __future__ import annotations


def memory_size(count: float) -> str:
    """Bytes of memory: `76.6 GiB`, `35.2 MiB`."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def disk_size(count: float) -> str:
    """Bytes on a disk: `24.4 GB`, `6.46 TB`."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{amount(count / size)} {unit}"
    return f"{amount(count / 1e3)} kB"


def time_span(seconds: float) -> str:
    """A time: `1,230 days`, `3.2 days`, `4.1 h`, `12 min`, `9.5 s`, `4.2 ms`."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{amount(seconds / size)} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """A time that was measured: `2 d 3 h`, `4 min 5 s`, `34.8 s`, `0.37 s`."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    rest = round(seconds)
    parts: list[str] = []
    for length, unit in _UNITS:
        if rest >= length or parts:
            parts.append(f"{rest // length} {unit}")
            rest %= length
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def amount(number: float) -> str:
    """Three digits: `1,230`, `12.3`, `0.00123`."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"
