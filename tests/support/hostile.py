"""Callers who mean no good: values that no field expects, a watch on how soon a server answers, many connections."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from support.clock import UndisturbedClock

LARGEST_ANSWER = 64 << 10
SLOWEST = 1.0
"""Seconds within which `/health` answers, whatever else is asked."""

TEXTS: SearchStrategy[str] = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "\0", "\ud800", "\ud83d\ude00", "<image>", "<|endoftext|>", "1", "true", "NaN", "a" * 3000]),
    st.sampled_from(['"' * 900, "😀" * 300, "../" * 300, "%00", "\r\nX: y", "{{ 1/0 }}", "\u202e", "﷐"]),
)
NUMBERS: SearchStrategy[Any] = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63, 2**64, -(2**64), 10**400, 10**4299, -(10**4000)]),
    st.floats(),
    st.sampled_from([0.5, 1.0, 5e-324, 1e-45, 1e-30, 1e308, -1e308, 1.7976931348623157e308, 2000, -2000]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES: SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
"""What JSON can hold, and a little more: NaN and infinities, as Python writes them."""


def bodies(fields: Mapping[str, SearchStrategy[Any]]) -> SearchStrategy[dict[str, Any]]:
    """Objects of these fields, each with a value of its own or, now and then, any."""
    usual = st.fixed_dictionaries({}, optional=dict(fields))
    wrong = st.dictionaries(st.one_of(st.sampled_from(sorted(fields)), TEXTS), VALUES, max_size=3)
    return st.builds(lambda one, other, odd: {**one, **(other if odd else {})}, usual, wrong, st.booleans())


def listening_on(port: int) -> int:
    """The process whose port it is."""
    found = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    return next(each.pid for each in found if each.laddr.port == port)


@dataclass
class Watch:
    """How long a server has taken to say that it is well."""

    seconds: list[float] = field(default_factory=list)


@contextmanager
def watched(port: int, path: str = "/health", process: int | None = None) -> Iterator[Watch]:
    """Ask all the time, in a thread of its own; at the end answers must have come within `SLOWEST`, by a clock that
    other processes do not lengthen. `process`: whose port it is, where that is known; to look for it takes longer than
    to ask.
    """
    watch, stopping, clock = Watch(), threading.Event(), UndisturbedClock(process or listening_on(port))
    statuses: list[int] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        statuses.append(answer.status)

    def look() -> None:
        while not (watch.seconds and stopping.wait(0.05)):
            seconds = clock.seconds(ask)
            watch.seconds.append(seconds if statuses[-1] == 200 else float("inf"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        stopping.set()
        thread.join()
    assert max(watch.seconds) < SLOWEST


@contextmanager
def half_open(port: int, count: int = 1100) -> Iterator[None]:
    """So many connections that begin a request and never end it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
    with ExitStack() as stack:
        for number in range(count):
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            caller.sendall(b"POST /v1/completions HT" if number % 2 else b"")
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FEW_DESCRIPTORS = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n"
"""What a program that is forked executes first, to have no more than these."""


def with_few_descriptors(command: list[str]) -> list[str]:
    """A command whose program may have 1024 files open."""
    return ["bash", "-c", 'ulimit -n 1024; exec "$@"', "bash", *command]


def as_json(value: Any) -> bytes:
    """As a careless program writes it: half surrogate pairs as escapes, and NaN."""
    return json.dumps(value).encode()
