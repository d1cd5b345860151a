"""What a connection may take of a server: a real one, and callers who ask for nothing, send slowly, or read nothing."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from support.clock import UndisturbedClock
from support.limits import set_limits

from orchestrator.http.listening import listen
from orchestrator.http.server import Server

LARGE = 8 << 20
SCHEDSTAT = Path("/proc/self/schedstat")
APP = f'''
async def app(scope, receive, send):
    """`/whole` reads all that is sent, and says how much; `/large` answers with 8 MiB; another path does not listen."""
    size = more = scope["path"] == "/whole"
    size = 0
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = b"x" * {LARGE} if scope["path"] == "/large" else str(size).encode()
    await send({{"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}})
    await send({{"type": "http.response.body", "body": body}})
'''
WITH_FEW_DESCRIPTORS = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from orchestrator.http.server import Server
from orchestrator.http.listening import listen
{APP}
listening = listen("127.0.0.1", 0)
print(listening.getsockname()[1], flush=True)
Server(app, lifespan="off").run(sockets=[listening])
"""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server with little patience."""
    names: dict[str, Any] = {}
    exec(APP, names)
    set_limits(monkeypatch, to_send_a_request=1.5, to_send_a_body=1.5, to_read_an_answer=1.5)
    server, listening = Server(names["app"], lifespan="off"), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def ask(port: int, path: str = "/") -> tuple[int, int, float]:
    """Status and size of an answer, and the seconds that it took."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    size = len(answer.read())
    connection.close()
    return answer.status, size, time.monotonic() - began


def seconds_until_closed(
    port: int, start: bytes, goes_on: Callable[[socket.socket], None] = lambda caller: None
) -> float:
    """How long a connection is kept that begins with `start`, and goes on every 0.2 s."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as caller:
        caller.sendall(start)
        while time.monotonic() - began < 60:
            try:
                goes_on(caller)
                if not caller.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    return time.monotonic() - began


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: ",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",  # the answer comes, and no other request
        b"POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx",
        b"POST /whole HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
def test_who_sends_nothing_more_is_let_go(port: int, start: bytes) -> None:
    assert seconds_until_closed(port, start) < 10


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n"),
        (b"POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        # Answered at once, and what is sent then goes on for ever.
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_who_sends_drop_by_drop_is_let_go(port: int, start: bytes, drop: bytes) -> None:
    assert seconds_until_closed(port, start, lambda caller: caller.sendall(drop)) < 10


def test_who_reads_nothing_is_let_go_and_who_reads_slowly_is_not(port: int) -> None:
    with ExitStack() as stack:
        deaf, slow = (stack.enter_context(socket.socket()) for _ in range(2))
        for caller in (deaf, slow):
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.settimeout(60)
            caller.connect(("127.0.0.1", port))
            caller.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        read = 0
        for _ in range(100):  # 5 s
            read += len(slow.recv(32768))
            time.sleep(0.05)
        while part := slow.recv(1 << 20):
            read += len(part)
            if read > LARGE:
                break
        assert read > LARGE
        assert seconds_until_closed(port, b"") < 10
        received = 0
        with suppress(ConnectionResetError):
            while part := deaf.recv(1 << 20):
                received += len(part)
        assert received < LARGE, "what the kernel had taken, and no more"


def test_what_a_server_waits_for_counts_when_it_is_timed() -> None:
    assert UndisturbedClock(os.getpid()).seconds(lambda: time.sleep(0.3)) > 0.2


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="without these counts UndisturbedClock is a plain clock")
def test_waits_for_a_core_at_the_same_time_are_taken_off_once() -> None:
    """Three on one core: each waits two thirds of the time, so that two of them wait longer than it takes."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
    end = time.monotonic() + 0.5

    def work() -> None:
        while time.monotonic() < end:
            pass

    try:
        found = UndisturbedClock(busy[0].pid).seconds(work)
    finally:
        os.sched_setaffinity(0, cores)
        for each in busy:
            each.kill()
            each.wait()
    assert 0 <= found < 0.4


def test_a_broken_request_and_endless_headers_are_refused(port: int) -> None:
    for sent in (b"\0\xff\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 200_000, b"x" * 200_000):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
            try:
                caller.sendall(sent)
                answer = caller.recv(65536)
            except ConnectionError:
                continue  # it was not even read
            assert answer.startswith(b"HTTP/1.1 400"), sent[:20]
    assert ask(port)[0] == 200


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
        posted = b"POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
        caller.sendall(b"".join(posted % (length, b"x" * length) for length in range(1, 31)))
        caller.shutdown(socket.SHUT_WR)
        answer = b""
        while part := caller.recv(65536):
            answer += part
    assert [int(each.rpartition(b"\r\n")[2]) for each in answer.split(b"HTTP/1.1 ")[1:]] == list(range(1, 31))


def test_more_connections_than_descriptors_shut_nobody_out() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    command = [sys.executable, "-c", WITH_FEW_DESCRIPTORS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        port = int(program.stdout.readline())
        try:
            with ExitStack() as stack:
                for number in range(1100):
                    caller = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                    caller.sendall(b"GET / HT" if number % 2 else b"")
                clock = UndisturbedClock(program.pid)
                assert max(clock.seconds(lambda: ask(port)) for _ in range(20)) < 1
        finally:
            program.terminate()
            _, said = program.communicate(timeout=60)
    assert "Too many open files" not in said
