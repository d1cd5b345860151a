"""Bytes, times and counts as a person reads them."""

from __future__ import annotations

import pytest

from orchestrator.quantities import (
    age,
    amount,
    clock_time,
    disk_size,
    memory_size,
    seconds_in,
    short_count,
    spec_duration,
    time_span,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.00421, "4.21 ms"),
        (1.0, "1 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7200.0, "2 h"),
        (3.2 * 86400, "3.2 days"),
        (7604.2 * 86400, "7,604 days"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert time_span(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0.00123, "0.00123"), (999.4, "999"), (999.6, "1,000"), (1e6, "1,000,000")]
)
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(
    ("count", "text"), [(10, "0.01 kB"), (24.4e9, "24.4 GB"), (6.46e12, "6.46 TB"), (4.2e15, "4,200 TB")]
)
def test_disk(count: float, text: str) -> None:
    assert disk_size(count) == text


def test_memory() -> None:
    assert (memory_size(76.6 * 2**30), memory_size(35.2 * 2**20)) == ("76.6 GiB", "35.2 MiB")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (65.4, "0:01:05"), (86399, "23:59:59"), (183600, "2d 3:00:00")]
)
def test_clock_times(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3.0, "0 s"), (59.9, "59 s"), (86399.0, "23 h"), (4 * 86400.0, "4 d"), (3599.0, "59 min")]
)
def test_ages_are_rounded_down(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (90, "1m30s"), (129600, "1d12h"), (3600, "1h")])
def test_durations_of_a_job_file(seconds: int, text: str) -> None:
    assert spec_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 90), ("90s", 90), ("30 min", 1800), ("36h", 129600), ("1.5 hours", 5400), ("1d12h", 129600)),
        *(("1w", 604800), ("1week", 604800), ("7 Days", 604800), (" 1 week 2 days ", 777600), ("0s", 0)),
        *((text, None) for text in ("", "soon", "-1d", "1 fortnight", "d", "1d12", "1e3s", "²d", "1 d" * 90, "9" * 99)),
    ],
)
def test_times_that_a_person_typed(text: str, seconds: float | None) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999"), (12_345, "12.35k"), (774_300_000, "774.3M"), (1.5e9, "1.5B"), (-2e12, "-2T")]
)
def test_short_counts(number: float, text: str) -> None:
    assert short_count(number) == text
