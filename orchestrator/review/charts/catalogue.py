"""The charts of runs: those that we know, and one for every other metric that a run has measured."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby

from orchestrator.fields.formatting import shorten
from orchestrator.planning.hardware.devices import computing_unit

OTHER = "other"
"""The group of metrics without a prefix."""
_GROUPS = ("train", "validation", "test", "evaluation", "optimizer", "throughput", "memory", "system", "progress")
"""In the order of the page; any other group follows them, by name."""
_LONGEST_NAME = 120
"""Of a metric that names its chart itself: names stand in addresses."""
_LONGEST_TITLE = 80
_LONGEST_GROUP = 40


@dataclass(frozen=True)
class Chart:
    """A chart of some keys of the metric log. `also`: patterns of keys that belong to it too. Values are drawn divided
    by `scale`; `ticks` is how plotly writes them. `is_core`: shown also of a run that has not measured it yet;
    `is_trouble`: not shown where it is 0.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    unit: str = ""
    also: tuple[str, ...] = ()
    scale: float = 1.0
    ticks: str = ""
    is_core: bool = False
    is_trouble: bool = False

    @property
    def group(self) -> str:
        """The prefix of its first key, under which the page lists it."""
        prefix, separator, _ = (self.keys or self.also)[0].partition("/")
        return shorten(prefix, _LONGEST_GROUP) if prefix and separator else OTHER

    def has(self, key: str) -> bool:
        """Whether a metric is drawn in this chart."""
        return key in self.keys or any(fnmatchcase(key, pattern) for pattern in self.also)


CHARTS = {
    chart.name: chart
    for chart in (
        Chart(
            "loss",
            "Loss",
            ("train/loss", "validation/loss"),
            also=("train/loss/*", "validation/*/loss", "validation/loss/*", "validation/*/loss/*"),
            is_core=True,
        ),
        Chart("grad_norm", "Gradient norm", ("train/grad_norm",), is_core=True),
        Chart("lr", "Learning rate", ("train/lr",), ticks="~g", is_core=True),
        Chart("speed", "Tokens per second", ("throughput/tokens_per_second",), "tokens/s", is_core=True),
        Chart(
            "tflops", "TFLOP/s per GPU", ("throughput/tflops_per_gpu",), "TFLOP/s", ("throughput/tflops_per_gpu_full",)
        ),
        Chart("mfu", "MFU", ("throughput/mfu",), also=("throughput/mfu_full",), ticks=".1%"),
        Chart("step_time", "Seconds per step", ("throughput/step_seconds",), "s", is_core=True),
        Chart("memory", "Peak memory", ("memory/peak_bytes",), "GiB", scale=2.0**30),
        Chart("loss_scale", "Loss scale", ("train/loss_scale",)),
        Chart("skipped", "Skipped steps", ("train/skipped_steps",), is_trouble=True),
        Chart("experts", "Losses of the experts' router", (), also=("train/moe/*",)),
        Chart("further-tokens", "Losses of further tokens", (), also=("train/mtp/*",)),
    )
}
"""The charts that we know, by name, in their order. Their names have no `/`, so that no metric's chart has one of
them.
"""


Known = Mapping[str, Chart]


def chart_of(name: str, device: object = None, known: Known = CHARTS) -> Chart:
    """A chart that we know, in the words of a run that trains on this device (its name in the event `started`)."""
    chart = known[name]
    return replace(chart, title=chart.title.replace("per GPU", f"per {computing_unit(device)}"))


def metric_chart(key: str) -> Chart:
    """The chart of one metric. It is called as the metric is, or by a digest where that is no part of an address: a
    name that is long, or that one of the charts that we know could have.
    """
    is_name = "/" in key and not key.startswith("/") and len(key) <= _LONGEST_NAME and key.isprintable()
    name = key if is_name else f"/{hashlib.sha256(key.encode(errors='replace')).hexdigest()[:16]}"
    return Chart(name, shorten(key, _LONGEST_TITLE), (key,))


def charts_with(values: Mapping[str, float], device: object = None, known: Known = CHARTS) -> list[Chart]:
    """The charts that have something to show where these are the last values of a run on this device, and those that
    every run has. By group, in the order of the page.
    """
    shown = [
        chart_of(chart.name, device, known)
        for chart in known.values()
        if chart.is_core
        or any(chart.has(key) and (value != 0 or not chart.is_trouble) for key, value in values.items())
    ]
    others = (key for key in sorted(values) if not any(chart.has(key) for chart in known.values()))
    return sorted([*shown, *map(metric_chart, others)], key=lambda chart: _place(chart.group))


def chart_named(name: str, keys: Collection[str], device: object = None, known: Known = CHARTS) -> Chart | None:
    """The chart of that name of runs that have measured these keys; None where there is none."""
    if name in known:
        return chart_of(name, device, known)
    if name in keys and metric_chart(name).name == name:
        return metric_chart(name)
    return next((chart for key in keys if (chart := metric_chart(key)).name == name), None)


def groups_of(charts: Iterable[Chart]) -> list[tuple[str, list[Chart]]]:
    """Charts that stand in groups, with the name of each."""
    return [(name, list(each)) for name, each in groupby(charts, key=lambda chart: chart.group)]


def _place(group: str) -> tuple[int, str]:
    if group in _GROUPS:
        return _GROUPS.index(group), ""
    return (len(_GROUPS) + 1, "") if group == OTHER else (len(_GROUPS), group)
