"""The passes of a step over time: a row for each pipeline stage, a box for each pass, its bubble hatched."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.planning.drawing.colours import pass_colour
from orchestrator.planning.drawing.svg import drawing, element, title
from orchestrator.planning.layout.pipeline import Span, Timeline, timeline
from orchestrator.planning.layout.topology import Topology

_LEFT, _TOP, _ROW, _BOX = 66, 44, 30, 24
_LOWER = 5
"""A backward pass is lower than a forward one by so much: they are told apart without their colours."""
_SHORTEST = 17
"""Width of the shortest pass: its number can be read."""
_WIDEST, _NARROWEST = 5200, 1000
_MOST_BOXES = 5000
_LEAST_WIDTH = 600
"""So that the legend fits."""
_BREAK = 46
"""Width of the gap where a long step is cut."""


def unit_timeline(layout: Topology, micro_batches: int) -> Timeline:
    """A step whose forward passes take 1 and backward passes 2 for a whole stage: for times that are not known."""
    stages = layout.pipeline_model_parallel_size
    chunks = layout.virtual_pipeline_model_parallel_size or 1
    return timeline([[1 / chunks] * chunks] * stages, [[2 / chunks] * chunks] * stages, micro_batches)


def bubble_share(step: Timeline) -> float:
    """Part of the step in which stages wait, on average over the stages."""
    return sum(step.idle(stage) for stage in range(len(step.spans))) / (len(step.spans) * step.seconds)


def timeline_svg(step: Timeline, *, in_seconds: bool, styled: bool = True) -> str:
    """A step. `in_seconds`: its times are seconds; otherwise they are units without a name. A long step is drawn at its
    beginning and end.
    """
    view = _View.of(step, in_seconds)
    stages = len(step.spans)
    height = _TOP + stages * _ROW + 26
    name = _name(step, view)
    parts = [_hatch(), *_legend(step), *_rows(step, view), *_axis(view, _TOP + stages * _ROW + 4)]
    return drawing(name, max(_LEFT + view.width + 12, _LEAST_WIDTH), height, *parts, styled=styled, class_="timeline")


@dataclass(frozen=True)
class _View:
    """What of the time is drawn where: from 0 to `cut` and from `resume` to `end`, `scale` px each unit of time."""

    scale: float
    cut: float
    resume: float
    end: float
    in_seconds: bool

    @classmethod
    def of(cls, step: Timeline, in_seconds: bool) -> _View:
        spans = [span for stage in step.spans for span in stage]
        shortest = min((span.end - span.start for span in spans if span.end > span.start), default=1.0)
        scale = _SHORTEST / shortest
        if step.seconds * scale > _WIDEST:
            # Passes that differ much: rather the longest one readable than a drawing without end.
            longest = max(span.end - span.start for span in spans)
            scale = min(scale, max(3 * _SHORTEST / longest, _WIDEST / step.seconds))
        widest = max(min(_WIDEST, _MOST_BOXES / len(step.spans) * _SHORTEST), _NARROWEST)
        if step.seconds * scale <= widest:
            return cls(scale, step.seconds, step.seconds, step.seconds, in_seconds)
        half = widest / scale / 2
        return cls(scale, half, step.seconds - half, step.seconds, in_seconds)

    @property
    def is_cut(self) -> bool:
        return self.resume > self.cut

    @property
    def pieces(self) -> list[tuple[float, float]]:
        """The stretches of time that are drawn."""
        return [(0.0, self.cut), (self.resume, self.end)] if self.is_cut else [(0.0, self.end)]

    @property
    def width(self) -> float:
        return self.x(self.end) - _LEFT

    def x(self, time: float) -> float:
        """Where a time is drawn."""
        if not self.is_cut or time <= self.cut:
            return _LEFT + time * self.scale
        return _LEFT + _BREAK + (self.cut + time - self.resume) * self.scale

    def text(self, time: float) -> str:
        """A time in words."""
        if not self.in_seconds:
            return f"{time:.4g}"
        return f"{time:.4g} s" if self.end >= 2 else f"{time * 1000:.4g} ms"


def _name(step: Timeline, view: _View) -> str:
    stages = len(step.spans)
    micro_batches = 1 + max(span.what.micro_batch for span in step.spans[0])
    chunks = 1 + max(span.what.chunk for span in step.spans[0])
    schedule = f"interleaved 1F1B, {chunks} chunks per stage" if chunks > 1 else "1F1B"
    return (
        f"{schedule}: {micro_batches} micro-batches through {stages} stage{'s' if stages > 1 else ''} in "
        f"{view.text(step.seconds)}, {bubble_share(step):.1%} of it bubble on average"
    )


def _legend(step: Timeline) -> Iterator[str]:
    chunks = 1 + max(span.what.chunk for span in step.spans[0])
    kinds = [(True, "forward"), (False, "backward")]
    x = float(_LEFT)
    for forward, label in kinds:
        for chunk in range(chunks):
            fill = pass_colour(forward, chunk, chunks).fill
            lower = 0 if forward else _LOWER
            yield element("rect", x=x, y=10 + lower, width=14, height=14 - lower, rx=2, fill=fill)
            x += 16
        text = label if chunks == 1 else f"{label}, chunk 0 to {chunks - 1}"
        yield element("text", text=text, x=x + 3, y=21, font_size=12, class_="ink")
        x += 7 * len(text) + 18
    yield element("rect", x=x, y=10, width=14, height=14, fill="url(#hatch)", class_="axis", stroke_width=0.5)
    yield element(
        "text",
        text=f"bubble, {bubble_share(step):.1%} of the step on average",
        x=x + 19,
        y=21,
        font_size=12,
        class_="ink",
    )


def _hatch() -> str:
    line = element("path", d="M0 0V7", class_="hatch")
    pattern = element(
        "pattern", line, id="hatch", width=7, height=7, patternUnits="userSpaceOnUse", patternTransform="rotate(45)"
    )
    return element("defs", pattern)


def _rows(step: Timeline, view: _View) -> Iterator[str]:
    chunks = 1 + max(span.what.chunk for span in step.spans[0])
    for stage, spans in enumerate(step.spans):
        y = _TOP + stage * _ROW
        share = step.idle(stage) / step.seconds
        said = f"stage {stage} waits {view.text(step.idle(stage))}, {share:.1%} of the step"
        yield element("text", title(said), text=f"stage {stage}", x=_LEFT - 8, y=y + 17, font_size=12, class_="ink e")
        for start, end in view.pieces:
            width = view.x(end) - view.x(start)
            yield element("rect", title(said), x=view.x(start), y=y, width=width, height=_BOX, fill="url(#hatch)")
        boxes = [box for span in spans for box in _boxes(span, view)]
        yield element("g", *(_box(box, chunks, view, y) for box in boxes))
        wide = [box for box in boxes if box.width >= 6.5 * len(str(box.span.what.micro_batch)) + 2]
        numbers = (_number(box, chunks, y) for box in wide)
        yield element("g", *numbers, class_="m", font_size=11, pointer_events="none")
        if view.is_cut:
            middle = view.x(view.cut) + _BREAK / 2
            left_out = title(f"not drawn: {view.text(view.cut)} to {view.text(view.resume)}")
            yield element("text", left_out, text="· · ·", x=middle, y=y + 17, font_size=13, class_="faint m")


class _Box(NamedTuple):
    """A pass, as far as it lies in a stretch that is drawn."""

    span: Span
    x: float
    width: float


def _boxes(span: Span, view: _View) -> Iterator[_Box]:
    for first, last in view.pieces:
        start, end = max(span.start, first), min(span.end, last)
        if end > start:
            yield _Box(span, view.x(start), view.x(end) - view.x(start))


def _box(box: _Box, chunks: int, view: _View, y: float) -> str:
    span, what = box.span, box.span.what
    chunk = f", chunk {what.chunk}" if chunks > 1 else ""
    kind = "forward" if what.forward else "backward"
    said = f"{kind} of micro-batch {what.micro_batch}{chunk}: {view.text(span.start)} to {view.text(span.end)}"
    fill = pass_colour(what.forward, what.chunk, chunks).fill
    width = max(box.width - 1, 0.5)
    lower = 0 if what.forward else _LOWER
    return element("rect", title(said), x=box.x + 0.5, y=y + lower, width=width, height=_BOX - lower, rx=2, fill=fill)


def _number(box: _Box, chunks: int, y: float) -> str:
    what = box.span.what
    ink = pass_colour(what.forward, what.chunk, chunks).ink
    return element(
        "text", text=str(what.micro_batch), x=box.x + box.width / 2, y=y + (16.5 if what.forward else 18.5), fill=ink
    )


def _axis(view: _View, y: float) -> Iterator[str]:
    """Times under the rows: the ends of what is drawn and round ones between them."""
    for start, end in view.pieces:
        yield element("path", d=f"M{view.x(start):.1f} {y}H{view.x(end):.1f}", class_="axis")
        step = _round_step((end - start) * 110 / max(view.x(end) - view.x(start), 1))
        ticks = [start, end]
        number = int(start / step) + 1
        while number * step < end - step / 3:
            if number * step > start + step / 3:
                ticks.append(number * step)
            number += 1
        for time in ticks:
            place = view.x(time)
            anchor = "e" if time == view.end else "" if time == 0 else "m"
            yield element("path", d=f"M{place:.1f} {y}v4", class_="axis")
            yield element(
                "text", text=view.text(time), x=place, y=y + 16, font_size=11, class_=f"faint {anchor}".strip()
            )


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
