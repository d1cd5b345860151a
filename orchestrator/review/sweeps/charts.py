"""Figures of a sweep. Where cells are compared, they are those that have a value, whatever their state."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, Literal

from orchestrator.fields.formatting import shorten
from orchestrator.review.charts.axes import plain
from orchestrator.review.charts.curves import Figure, line_of
from orchestrator.review.compare import told_apart
from orchestrator.review.sweeps.analysis import as_number, spans_decades
from orchestrator.review.sweeps.cells import Cell, SweepView
from orchestrator.spec.documents.field_names import short_name

How = Literal["best", "mean", "median"]
Scale = Callable[[str], float | None]

_MOST_TICKS = 8
_GROUPS = (("completed", "solid", 3.0), ("series-1", "solid", 1.5), ("series-5", "dash", 1.5), ("series-6", "dot", 1.5))
_STAR = {"size": 14, "symbol": "star"}
_OTHERS = {"color": "dim", "dash": "dot", "width": 1.0}
_FEW_CELLS = 8
_LONGEST_TICK = 18
_LONGEST_LABEL = 40
_LONGEST_NAME = 200
_MOST_VALUES = 24
"""Of a parameter, on an axis of the grid."""
_MOST_AXES = 12
"""Of the parameters of every cell."""
_BYTES_OF_CELLS = 40 << 10
"""Of a figure; what else it has is less than the rest of 64 KB."""
_BYTES_OF_A_POINT = 30
"""Beside its texts."""
_DIGITS = 7
"""Significant digits of a value that is drawn."""


@dataclass(frozen=True)
class CellStyle:
    """How some cells are drawn in every chart of a sweep: what a legend calls them, and a line of plotly."""

    name: str
    line: Mapping[str, Any]
    cells: Sequence[Cell]


def looks_of(view: SweepView) -> list[CellStyle]:
    """A look for each of few cells; of many one for each group of those that have a value, by their place."""
    if len(view.cells) <= _FEW_CELLS:
        return [
            CellStyle(name_of(cell), {**line_of(number), "width": 1.5 if number else 3.0}, [cell])
            for number, cell in enumerate(view.cells)
        ]
    groups = zip(_GROUPS, _groups(view.measured), strict=False)
    return [
        CellStyle(name, {"color": c, "dash": dash, "width": width}, part) for (c, dash, width), (name, part) in groups
    ]


def name_of(cell: Cell) -> str:
    """What a figure calls a cell."""
    return _short(cell.entry.name, _LONGEST_NAME)


def _is_in(look: CellStyle, cell: Cell) -> bool:
    return any(each is cell for each in look.cells)


def loss_curves(view: SweepView, figure: Figure, cells: Mapping[str, Cell]) -> Figure:
    """A figure of the cells' curves, by the names of its traces, with each cell as the other charts draw it."""
    looks = looks_of(view)
    named: set[str] = set()
    for trace in figure["data"]:
        cell = cells.get(trace["name"])
        if cell is None or not looks:
            continue
        look = next((each for each in looks if _is_in(each, cell)), None) or CellStyle(
            "without a value", _OTHERS, [cell]
        )
        said = f"{name_of(cell)}<br>step %{{x}}: %{{y:.6g}}<extra></extra>"
        trace |= {"line": dict(look.line), "marker": {"color": look.line["color"]}, "hovertemplate": said}
        trace |= {"name": look.name, "legendgroup": look.name, "showlegend": look.name not in named}
        named.add(look.name)
    figure["layout"] |= {"showlegend": len(named) > 1, "hovermode": "closest"}
    return figure


def heat_map(view: SweepView, x: str, y: str, how: How) -> Figure:
    """The metric over two parameters; over the others the best, the mean or the median of the cells. Each field says
    its number.
    """
    columns, rows = _values_of_best(view, x), _values_of_best(view, y)
    metric, across, down = (_short(text) for text in (view.metric, short_name(x), short_name(y)))
    found: dict[tuple[str, str], list[float]] = {}
    for cell in view.measured:
        settings = cell.entry.values
        if cell.value is not None and x in settings and y in settings:
            found.setdefault((settings[y], settings[x]), []).append(cell.value)
    ways: dict[How, Callable[[list[float]], float]] = {
        "best": max if view.goal == "max" else min,
        "mean": statistics.fmean,
        "median": statistics.median,
    }
    of = ways[how]
    values = [
        [_rounded(of(found[row, column])) if (row, column) in found else None for column in columns] for row in rows
    ]
    counts = [[len(found.get((row, column), ())) for column in columns] for row in rows]
    data = [
        {
            "type": "heatmap",
            "x": list(_labels(columns).values()),
            "y": list(_labels(rows).values()),
            "z": values,
            "customdata": counts,
            "texttemplate": "%{z:.4g}",
            "hovertemplate": f"{across} %{{x}}<br>{down} %{{y}}<br>%{{z:.6g}} of %{{customdata}} cells<extra></extra>",
            "hoverongaps": False,
            "colorscale": "Viridis",
            # The best is bright.
            "reversescale": view.goal == "min",
            "xgap": 2,
            "ygap": 2,
            "showscale": bool(found),
        }
    ]
    title = metric if len(view.axes) < 3 else f"{how} {metric}"
    return {
        # Its fields say what is the matter with their cells; without them there would be no places for that.
        "data": data if found or (columns and rows) else [],
        "layout": {
            "title": {"text": title},
            "xaxis": {"type": "category", "title": {"text": across + _part_of(columns, view, x)}, "showgrid": False},
            "yaxis": {"type": "category", "title": {"text": down + _part_of(rows, view, y)}, "showgrid": False},
            "annotations": _without_value(view, (x, columns), (y, rows), found),
            "hovermode": "closest",
        },
    }


def _values_of_best(view: SweepView, path: str) -> list[str]:
    """The values of a parameter that are drawn, in their order: of many those of the best cells."""
    values = list(view.axes.get(path, ()))
    if len(values) <= _MOST_VALUES:
        return values
    best = dict.fromkeys(cell.entry.values[path] for cell in view.current if path in cell.entry.values)
    kept = set(list(best)[:_MOST_VALUES])
    return [value for value in values if value in kept]


def _part_of(values: Sequence[str], view: SweepView, path: str) -> str:
    """What the title of an axis adds where not all values are on it."""
    every = len(view.axes.get(path, ()))
    return f" ({len(values)} of {every} values: the best cells')" if len(values) < every else ""


def _labels(values: Sequence[str]) -> dict[str, str]:
    """The values of an axis and how they are written there, no two alike."""
    return dict(zip(values, told_apart(_short(value, _LONGEST_LABEL) for value in values), strict=True))


def _short(text: str, limit: int = 80) -> str:
    return plain(shorten(text, limit))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _thinned(cells: Sequence[Cell], size: Callable[[Cell], int]) -> tuple[Sequence[Cell], str]:
    """All cells, the best first; where these are too large for a figure, every second of them, or every third, and so
    on. And what the title adds then. `size`: the bytes of a cell.
    """
    sizes = [size(cell) for cell in cells]
    step = next(step for step in count(1) if step >= len(cells) or sum(sizes[::step]) <= _BYTES_OF_CELLS)
    return cells[::step], f" (one cell in {step})" if step > 1 else ""


def _without_value(
    view: SweepView,
    across: tuple[str, Sequence[str]],
    down: tuple[str, Sequence[str]],
    found: Mapping[tuple[str, str], object],
) -> list[dict[str, Any]]:
    """What is the matter with the fields that have cells, but no value. `across`, `down`: a parameter and its values
    on the axis.
    """
    (x, columns), (y, rows) = across, down
    states: dict[tuple[str, str], str] = {}
    for cell in view.current:
        settings = cell.entry.values
        if x in settings and y in settings and (settings[y], settings[x]) not in found:
            states.setdefault((settings[y], settings[x]), cell.state)
    return [  # by their numbers: plotly takes a category that looks like a number for one
        {"x": columns.index(column), "y": rows.index(row), "text": state, "showarrow": False}
        for (row, column), state in states.items()
        if column in columns and row in rows
    ]


def scatter(view: SweepView, axis: str) -> Figure:
    """The metric over one parameter, a point for each cell. Numbers that span decades are on a logarithmic axis."""
    found = [cell for cell in view.measured if axis in cell.entry.values]

    def size(cell: Cell) -> int:
        return _bytes(name_of(cell), 2 * _short(cell.entry.values[axis], _LONGEST_LABEL))

    cells, thinning = _thinned(found, size)
    texts = [cell.entry.values[axis] for cell in cells]
    numbers = [number for text in texts if (number := as_number(text)) is not None]
    numeric = len(numbers) == len(texts)
    # On an axis of numbers a single one would stand amid others that nobody tried.
    is_scaled = numeric and len(set(numbers)) > 1
    kind = "category" if not is_scaled else "log" if spans_decades(numbers) else "linear"
    best = view.best
    looks = looks_of(view)
    shown = set(texts)
    values = _labels([value for value in view.axes.get(axis, list(shown)) if value in shown])
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [
                as_number(value) if is_scaled else values[value] for value in (cell.entry.values[axis] for cell in part)
            ],
            "y": [cell.value if cell.value is None else _rounded(cell.value) for cell in part],
            "text": [name_of(cell) for cell in part],
            "hovertemplate": "%{text}<br>%{y:.6g}<extra></extra>",
            "showlegend": False,
            "marker": {**marker, "color": look.line["color"]},
        }
        for look in looks
        for name, part, marker in (
            ("cells", [cell for cell in cells if cell is not best and _is_in(look, cell)], {"size": 8}),
            ("the best", [cell for cell in cells if cell is best and _is_in(look, cell)], _STAR),
        )
        if part
    ]
    order = {"categoryorder": "array", "categoryarray": list(values.values())} if kind == "category" else {}
    ticks: dict[str, Any] = {}
    if kind == "log" and len(values) <= _MOST_TICKS:
        ticks = {"tickvals": [as_number(value) for value in values], "ticktext": list(values.values())}
    return {
        "data": data,
        "layout": {
            "title": {"text": f"{_short(view.metric)} over {_short(short_name(axis))}{thinning}"},
            "xaxis": {"type": kind, "title": {"text": _short(short_name(axis))}, **order, **ticks},
            "yaxis": {"title": {"text": _short(view.metric)}},
            "hovermode": "closest",
        },
    }


def parallel(view: SweepView) -> Figure:
    """A line for each cell through its value of every parameter to its metric; the cells in groups by their place,
    which the legend hides and shows.

    Drawn of plain lines: plotly's own parallel coordinates compile code at run time, which pages here may not do.
    """
    axes = list(view.axes)[:_MOST_AXES]
    said = _hover_texts(view.measured, len(axes) + 1)
    cells, thinning = _thinned(view.measured, lambda cell: (len(axes) + 1) * _bytes(said[cell.entry.id]))
    drawn = {cell.entry.id for cell in cells}
    scales = [_scale(view.axes[path]) for path in axes]
    values = [cell.value for cell in cells if cell.value is not None]
    if not values or not axes:
        return {"data": [], "layout": {"title": {"text": "Parameters"}}}
    low, high = min(values), max(values)

    def height(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return 1 - share if view.goal == "min" else share

    def course(cell: Cell) -> list[float | None]:
        """How high a cell's line is over each axis; None where it has no value of it."""
        known = zip((cell.entry.values.get(path) for path in axes), scales, strict=True)
        places = [scale(text) if text is not None else None for text, scale in known]
        return [place if place is None else round(place, 4) for place in (*places, height(cell.value or 0.0))]

    groups = [
        (look, [cell for cell in look.cells if cell.is_measured and cell.entry.id in drawn]) for look in looks_of(view)
    ]
    data = [_courses(look, part, course, said) for look, part in groups if part]
    ticks = [
        _note(number, place, value)
        for number, (path, scale) in enumerate(zip(axes, scales, strict=True))
        for value in _some(view.axes[path])
        if (place := scale(value)) is not None
    ]
    ticks += [_note(len(axes), height(value), f"{value:.4g}") for value in dict.fromkeys((low, high))]
    counted = "Parameters" if len(axes) == len(view.axes) else f"{len(axes)} of {len(view.axes)} parameters"
    return {
        "data": data[::-1],  # the best on top
        "layout": {
            "title": {"text": f"{counted}, the best on top{thinning}"},
            "xaxis": {
                "tickvals": list(range(len(axes) + 1)),
                "ticktext": [_short(text) for text in (*(short_name(path) for path in axes), view.metric)],
                "range": [-0.35, len(axes) + 0.35],
                "showgrid": True,
            },
            "yaxis": {"visible": False, "range": [-0.08, 1.08]},
            "annotations": ticks,
            "hovermode": "closest",
            "legend": {"traceorder": "reversed"},
        },
    }


def _courses(
    look: CellStyle, cells: Sequence[Cell], course: Callable[[Cell], list[float | None]], said: Mapping[str, str]
) -> dict[str, Any]:
    """The lines of cells that look alike, as one trace with gaps between them. `said`: what their points say."""
    xs: list[int | None] = []
    ys: list[float | None] = []
    texts: list[str] = []
    for cell in cells:
        places = course(cell)
        xs += [*range(len(places)), None]
        ys += [*places, None]
        texts += [said[cell.entry.id]] * len(places) + [""]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": look.name,
        "x": xs,
        "y": ys,
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "line": dict(look.line),
        "marker": {"color": look.line["color"], "size": 5},
    }


def _hover_texts(cells: Sequence[Cell], points: int) -> dict[str, str]:
    """What each of a cell's points says, by the cell's id: its name and value; its place where names are too long."""
    named = {cell.entry.id: f"{name_of(cell)}: {cell.value:.6g}" for cell in cells}
    if points * sum(map(_bytes, named.values())) <= _BYTES_OF_CELLS:
        return named
    return {cell.entry.id: f"place {place}: {cell.value:.6g}" for place, cell in enumerate(cells, start=1)}


def _bytes(*texts: str) -> int:
    """Of a point with these texts."""
    return _BYTES_OF_A_POINT + sum(len(json.dumps(text)) for text in texts)


def _groups(cells: Sequence[Cell]) -> list[tuple[str, Sequence[Cell]]]:
    """The cells, the best first, as a few groups of the same size, and what they are called; none of no cells."""
    if not cells:
        return []
    count = len(_GROUPS) if len(cells) >= _FEW_CELLS else min(2, len(cells))
    bounds = [number * len(cells) // count for number in range(count + 1)]
    parts = pairwise(bounds)
    return [(f"the best {end}" if begin == 0 else f"{begin + 1} to {end}", cells[begin:end]) for begin, end in parts]


def _scale(values: Sequence[str]) -> Scale:
    """Where a value stands on its axis, from 0 to 1: few values, or words, at equal distances; many numbers by size."""
    last = len(values) - 1
    places: Mapping[str, float] = {value: number / last if last else 0.5 for number, value in enumerate(values)}
    numbers = [number for value in values if (number := as_number(value)) is not None]
    if len(values) > _MOST_TICKS and len(numbers) == len(values):
        low, high = min(numbers), max(numbers)
        if high > low:
            return lambda value: None if (number := as_number(value)) is None else (number - low) / (high - low)
    return places.get


def _some(values: Sequence[str]) -> Sequence[str]:
    """At most eight of them, with the first and the last."""
    if len(values) <= _MOST_TICKS:
        return values
    return [values[number * (len(values) - 1) // (_MOST_TICKS - 1)] for number in range(_MOST_TICKS)]


def _note(x: int, y: float, text: str) -> dict[str, Any]:
    shown = plain(shorten(text, _LONGEST_TICK))
    beside = {"xanchor": "right", "xshift": -7, "font": {"size": 11}}
    # Lines pass behind it.
    return {"x": x, "y": y, "text": shown, "showarrow": False, **beside, "bgcolor": "card"}
