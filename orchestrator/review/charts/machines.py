"""How busy the machines of a run were: a table of them, and curves over time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator.review.charts.axes import plain
from orchestrator.review.charts.curves import Figure, line_of, mode_of
from orchestrator.review.charts.series import thinned
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.system import Measurement, read_measurements, system_logs

_MOST_POINTS = 1000
_LONG_SECONDS = 7200.0
"""From here on an axis has hours."""
_PAUSE = 4.0
"""Times as long as usual without a measurement: nobody measured."""
_MOST_NODES = 16
_WHOLE_BYTES = 1 << 20
"""A longer log is read at some places only."""
_LINES_AT_A_PLACE = 2
_MB_PER_GB = 1000.0


@dataclass(frozen=True)
class Measure:
    """Something that is measured of a node. Values are drawn divided by `scale`; `is_sum`: it only grows, and is drawn
    as what was added in a second.
    """

    name: str
    title: str
    unit: str
    key: str
    scale: float = 1.0
    is_sum: bool = False


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("gpu", "GPU utilisation", "%", "gpu_utilization_percentage"),
        Measure("gpu_memory", "GPU memory", "GB", "gpu_memory_usage_megabytes", _MB_PER_GB),
        Measure("power", "GPU power", "W", "gpu_power_usage_watts"),
        Measure("cpu", "Processor utilisation", "%", "cpu_utilization_percentage"),
        Measure("memory", "Memory", "GB", "system_memory_usage_megabytes", _MB_PER_GB),
        Measure("disk", "Free on the disk of the run", "GB", "disk_available_megabytes", _MB_PER_GB),
        Measure("received", "Network, received", "MB/s", "network_receive_megabytes", is_sum=True),
        Measure("sent", "Network, sent", "MB/s", "network_transmit_megabytes", is_sum=True),
    )
}
"""What is drawn, in the order of the page."""


@dataclass(frozen=True)
class Node:
    """A machine as it was last seen, `time` in seconds since the epoch. `values`: by measure, of GPUs the mean."""

    number: int
    host: str
    time: float
    gpus: int
    values: Mapping[str, float]


def nodes_of(run: RunDir) -> list[Node]:
    """Every machine that was measured, by its number."""
    found = []
    for number, path in system_logs(run).items():
        last = _last(path)
        if last is not None:
            values = {
                each.name: value / each.scale
                for each in MEASURES.values()
                if not each.is_sum and (value := _mean(last.values.get(each.key))) is not None
            }
            gpus = max((len(value) for value in last.values.values() if isinstance(value, list)), default=0)
            found.append(Node(number, last.host, last.time, gpus, values))
    return found


def measures_of(run: RunDir) -> list[Measure]:
    """The measures that some machine of a run has."""
    keys: set[str] = set()
    for path in list(system_logs(run).values())[:_MOST_NODES]:
        last = _last(path)
        keys |= set(last.values) if last is not None else set()
    return [measure for measure in MEASURES.values() if measure.key in keys]


def system_version(run: RunDir) -> tuple[tuple[int, int], ...]:
    """Changes whenever a machine that is drawn measured something."""
    found = (path.stat() for path in list(system_logs(run).values())[:_MOST_NODES])
    return tuple((each.st_mtime_ns, each.st_size) for each in found)


def machine_figure(run: RunDir, measure: Measure) -> Figure:
    """One measure of the first 16 machines over time: of a single machine each GPU, of several the mean of theirs.

    A long log is read at a thousand places, so that the page of a long run does not wait for it.
    """
    logs = list(system_logs(run).items())[:_MOST_NODES]
    read = {number: _spread(path) for number, path in logs}
    times = [each.time for found in read.values() for each in found]
    first = min(times, default=0.0)
    unit, seconds = ("minutes", 60.0) if max(times, default=0.0) - first < _LONG_SECONDS else ("hours", 3600.0)
    data: list[dict[str, Any]] = []
    for number, found in read.items():
        for name, points in _curves(number, found, measure, single=len(read) == 1):
            data.append(_trace(name, points, first, seconds, len(data)))
    return {
        "data": [trace for trace in data if trace["x"]],
        "layout": {
            "title": {"text": measure.title},
            "xaxis": {"title": {"text": f"{unit} since the first measurement"}},
            "yaxis": {"title": {"text": measure.unit}, "rangemode": "tozero"},
            "showlegend": len(data) > 1,
        },
    }


_Points = list[tuple[float, float]]


def _curves(number: int, found: Sequence[Measurement], measure: Measure, *, single: bool) -> list[tuple[str, _Points]]:
    host = found[-1].host if found else ""
    gpus = max((len(value) for each in found if isinstance(value := each.values.get(measure.key), list)), default=0)
    if single and gpus > 1:
        return [(f"GPU {gpu}", _scaled(_of_gpu(found, measure.key, gpu), measure)) for gpu in range(gpus)]
    means = ((each.time, _mean(each.values.get(measure.key))) for each in found)
    points = [(time, value) for time, value in means if value is not None]
    return [(f"{number} {host}", _scaled(_rates(points) if measure.is_sum else points, measure))]


def _of_gpu(found: Iterable[Measurement], key: str, gpu: int) -> _Points:
    points = []
    for each in found:
        value = each.values.get(key)
        if isinstance(value, list) and gpu < len(value) and (said := value[gpu]) is not None:
            points.append((each.time, said))
    return points


def _rates(points: _Points) -> _Points:
    """What was added in each second between two measurements; a start counts from nothing again, and is left out."""
    return [
        (time, (value - earlier) / (time - before))
        for (before, earlier), (time, value) in pairwise(points)
        if time > before and value >= earlier
    ]


def _scaled(points: _Points, measure: Measure) -> _Points:
    return [(time, value / measure.scale) for time, value in points if math.isfinite(value) and math.isfinite(time)]


def _trace(name: str, points: _Points, first: float, seconds: float, number: int) -> dict[str, Any]:
    places = thinned([value for _, value in points], _MOST_POINTS)
    xs: list[float] = []
    ys: list[float | None] = []
    pauses = _pauses([time for time, _ in points])
    for before, place in pairwise([0, *places]):
        if xs and any(before < pause <= place for pause in pauses):
            xs.append(xs[-1])
            ys.append(None)
        xs.append((points[place][0] - first) / seconds)
        ys.append(points[place][1])
    return {
        "type": "scatter",
        "mode": mode_of(ys),
        "name": plain(name),
        "line": line_of(number),
        "marker": {"color": line_of(number)["color"]},
        "x": xs,
        "y": ys,
    }


def _pauses(times: Sequence[float]) -> list[int]:
    """The places of measurements before which nothing was measured for far longer than between most of them."""
    apart = [after - before for before, after in pairwise(times)]
    usual = statistics.median(apart) if apart else 0.0
    return [place for place, each in enumerate(apart, 1) if each > _PAUSE * usual > 0]


def _mean(value: float | list[float | None] | None) -> float | None:
    if not isinstance(value, list):
        return value
    said = [each for each in value if each is not None]
    return math.fsum(said) / len(said) if said else None


def _spread(path: Path) -> list[Measurement]:
    """The measurements of a log: all of a short one, of a longer one those at a thousand places, by time."""
    size = _size(path)
    if size <= _WHOLE_BYTES:
        return _in_order(read_measurements(path)[0])
    found = read_measurements(path, 0, 1)[0]
    for number in range(1, _MOST_POINTS):
        # The first line there is torn, where its beginning was not hit by chance.
        found += read_measurements(path, number * size // _MOST_POINTS, _LINES_AT_A_PLACE)[0][-1:]
    last = _last(path)
    return _in_order([*found, *([last] if last is not None else [])])


def _last(path: Path) -> Measurement | None:
    tail = read_measurements(path, max(0, _size(path) - (64 << 10)))[0]
    return tail[-1] if tail else None


def _in_order(found: Iterable[Measurement]) -> list[Measurement]:
    return sorted({each.time: each for each in found if math.isfinite(each.time)}.values(), key=lambda each: each.time)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
