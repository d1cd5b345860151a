"""Servers that refuse: one clear line for each, no secret in it, and nothing that waits for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.tracking.conftest import SilentServer, free_port, log_steps, make_run, once

ANSWERS = {
    "forbidden": (403, "text/html", b"<html>\n<b>go\naway</b></html>"),
    "denied": (401, "application/json", b'{"error_code": "UNAUTHENTICATED", "message": "who are you?"}'),
    "broken": (500, "text/plain", b"oops"),
    "other": (200, "text/html", b"<html>a page of someone else</html>"),
}


class RefusingHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, kind, body = ANSWERS[self.path.split("/")[1]]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 (the name is the base class's)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing_address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), RefusingHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.usefixtures("forked_sending")
def test_each_refusal_is_one_clear_line(tmp_path: Path, refusing_address: str, silent_server: SilentServer) -> None:
    closed = f"http://me:hidden@127.0.0.1:{free_port()}"
    uris = [f"{refusing_address}/{kind}" for kind in ANSWERS]
    uris += [closed, closed, silent_server.address, "${env:NOT_SET}", "sqlite:////proc/none/mlflow.db", "nonsense://x"]
    runs = [make_run(tmp_path, f"0000000{n}", tracking={"uri": uri}) for n, uri in enumerate(uris)]
    for run in runs:
        log_steps(run, range(1, 4))
    code, records = once(*runs, environment={"MLFLOW_HTTP_REQUEST_TIMEOUT": "10"})
    assert code == 1
    assert {record["state"] for record in records} == {"failed"}
    messages = [record["message"] for record in records]
    assert messages[0].endswith("/forbidden: it does not allow this (<html> <b>go away</b></html>)")
    assert "MLFLOW_TRACKING_TOKEN, are missing or wrong (who are you?)" in messages[1]
    assert messages[2].endswith("/broken: it answers with error 500")
    assert "valid JSON" in messages[3]
    unreachable = closed.replace("me:hidden", "***")
    assert messages[4] == messages[5] == f"MLflow at {unreachable}: it cannot be reached: connection refused"
    assert messages[6] == f"MLflow at {silent_server.address}: it does not answer within 10 s"
    assert messages[7].startswith("${env:NOT_SET} is used in the spec, but NOT_SET is not set")
    assert "unable to open database file" in messages[8] or "No such file" in messages[8]
    assert "nonsense" in messages[9]
    assert all("\n" not in message and len(message) <= 300 for message in messages)
    # Nothing is lost by any of it.
    assert all(run.metrics_file.read_bytes().count(b"\n") == 3 for run in runs)
