"""Templates, in which everything is escaped, and how numbers and times are written. Nothing here knows of a server."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator import quantities
from orchestrator.dashboard.assets import asset
from orchestrator.fields.formatting import shorten
from orchestrator.quantities import disk_size, memory_size, short_count, timestamp
from orchestrator.run_directory.rundir import in_command

NOTHING = "\N{EN DASH}"


@cache
def environment() -> Environment:
    """The templates, with the words that they know. Made once, and compiled before anybody waits for a page."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": ago,
        "clock": clock,
        "count": count,
        "counted": counted,
        "exact": exact,
        "duration": duration,
        "size": size,
        "disk": disk,
        "number": number,
        "percent": percent,
        "segment": segment,
        "shorten": shorten,
        "as_json": as_json,
        "age": age,
        "in_command": in_command,
        "spark_points": spark_points,
        "spark_words": spark_words,
    }
    made.globals["asset_url"] = asset_url
    made.globals["inline"] = inline
    for name in made.list_templates():
        made.get_template(name)
    return made


def asset_url(name: str) -> str:
    """Where an asset lies; the address changes with the content, so that browsers keep it for good."""
    found = asset(name)
    assert found is not None, f"{name} is shipped"
    return f"/assets/{found.tag}/{name}"


def inline(name: str) -> Markup:
    """The text of a shipped script or style, to stand in its element. It is trusted, as no data is."""
    found = asset(name)
    assert found is not None, f"{name} is shipped"
    return Markup(found.content.decode().replace("</script", "<\\/script"))


def segment(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


def as_json(value: Any) -> str:
    """JSON that is free of what ends a script element or a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def number(value: float | None, digits: int = 4) -> str:
    """A measurement: 2.345, 1.2e-05, nan; a dash for none."""
    if value is None:
        return NOTHING
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


def count(value: float | None) -> str:
    """12.3k, 4.5M, 7.8B; a dash for none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return short_count(value, digits=3)


def counted(number: int, one: str, several: str) -> str:
    """1 run, 1,234 runs."""
    return f"{number:,} {one if number == 1 else several}"


def exact(value: float | None) -> str:
    """12,345; a dash for none."""
    return NOTHING if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    """0.5 as 50 %; a dash for none."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.1%}".replace("%", " %")


def size(value: float | None) -> str:
    """Bytes of memory: 12.3 GiB; a dash for none."""
    return NOTHING if value is None or not math.isfinite(value) else memory_size(value)


def disk(value: float | None) -> str:
    """Bytes on a disk, in powers of ten: 43.0 MB; a dash for none."""
    return NOTHING if value is None or not math.isfinite(value) else disk_size(value)


def duration(seconds: float | None) -> str:
    """2 d 3 h, 4 min 5 s, 34.8 s; a dash for none."""
    return NOTHING if seconds is None or not math.isfinite(seconds) or seconds < 0 else quantities.duration(seconds)


def ago(moment: float | None) -> str:
    """How long ago a moment is, in seconds since the epoch. One that is yet to come, by a wrong clock, is now."""
    return NOTHING if moment is None else f"{duration(max(0.0, time.time() - moment))} ago"


def age(moment: float | None) -> str:
    """How long ago a moment is, in its largest unit: 3 d. A dash for none."""
    if moment is None or not math.isfinite(moment):
        return NOTHING
    return quantities.age(time.time() - moment)


def clock(moment: float | None) -> str:
    """2026-01-31 12:00:00, by this machine's clock; a dash for none or what no clock shows."""
    if moment is None:
        return NOTHING
    try:
        return timestamp(moment)
    except (ValueError, OverflowError, OSError):
        return NOTHING


def spark_points(values: Sequence[float], width: float, height: float) -> str:
    """Where a line of so many pixels goes, as SVG has it: `0,12 1.5,3`; empty for less than two values."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = width / (len(values) - 1)
    if not math.isfinite(span):
        return ""
    places = ((number * step, (high - value) / span * height) for number, value in enumerate(values))
    return " ".join(f"{x:.4g},{y:.4g}" for x, y in places)


def spark_words(values: Sequence[float]) -> str:
    """The same for those who do not see it."""
    return f"loss from {values[0]:.4g} to {values[-1]:.4g}, lowest {min(values):.4g}" if values else "no loss yet"
