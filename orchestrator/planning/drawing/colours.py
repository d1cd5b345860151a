"""Colours that people with any colour vision tell apart. Nothing is said by colour alone: every box has its numbers,
and backward passes are lower than forward ones.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

_STAGES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#333333")
"""Okabe and Ito's palette (2008, "Color Universal Design"), its black a dark grey."""
_RAMP = ("#00224E", "#575C6D", "#A59C74", "#FDE737")
"""Cividis (Nuñez, Anderton and Renslow 2018), for more stages than the palette has colours."""
_FORWARD = ("#1F5FA8", "#A9D0F5")
_BACKWARD = ("#B65A00", "#FBCB8F")
"""Of the first model chunk and of the last."""


class Colour(NamedTuple):
    """A fill, and the ink that can be read on it."""

    fill: str
    ink: str


def stage_colour(stage: int, stages: int) -> Colour:
    """The colour of a pipeline stage."""
    if stages <= len(_STAGES):
        return _on(_STAGES[stage])
    return _on(_between(_RAMP, stage / (stages - 1)))


@cache
def pass_colour(forward: bool, chunk: int, chunks: int) -> Colour:
    """The colour of a pass: blue forwards, orange backwards, lighter for later model chunks."""
    return _on(_between(_FORWARD if forward else _BACKWARD, chunk / max(chunks - 1, 1)))


def _between(colours: tuple[str, ...], place: float) -> str:
    """The colour at a place from 0 to 1 of a ramp."""
    first = min(int(place * (len(colours) - 1)), len(colours) - 2)
    part = place * (len(colours) - 1) - first
    mixed = (round(a + (b - a) * part) for a, b in zip(_rgb(colours[first]), _rgb(colours[first + 1]), strict=True))
    return "#" + "".join(f"{value:02X}" for value in mixed)


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21 (WCAG 2.1)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = (value / 255 for value in _rgb(colour))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _on(fill: str) -> Colour:
    return Colour(fill, max(("#000000", "#FFFFFF"), key=lambda ink: contrast(fill, ink)))
