"""`python -m orchestrator.inference.serving FOLDER`: what `serve` starts, once for each process that holds a part.

The token is in the environment, where no list of processes shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time

from orchestrator.errors import UserError
from orchestrator.http.listening import TOKEN_VARIABLE, listen
from orchestrator.http.server import Server
from orchestrator.inference.program import add_weights, exit_code, loaded
from orchestrator.inference.serving.app import Limits, ServedModel, build_app
from orchestrator.inference.serving.chat_template_choice import chat_of
from orchestrator.inference.serving.engine import Engine

_DAYS = 365 * 24 * 3600.0
"""Seconds that ranks wait for a request."""


def main() -> int:
    """Answer until a signal; 0, or the exit code of what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.inference.serving", description=__doc__)
    add_weights(parser)
    parser.add_argument("--name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--max-batch", type=int, required=True)
    parser.add_argument("--max-waiting", type=int, required=True)
    parser.add_argument("--max-bytes", type=int, required=True)
    parser.add_argument("--max-length", type=int)
    arguments = parser.parse_args()
    return exit_code(_serve, arguments)


def _serve(arguments: argparse.Namespace) -> None:
    # After an error of one rank its communicators are aborted, which NCCL's own watchdog would end the process for.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    token = os.environ.pop(TOKEN_VARIABLE, None) or None  # an empty one is none, as the command has it
    if token is None and not arguments.loopback:
        raise UserError(
            f"{arguments.host} can be reached from other machines: a token is needed", code="http_token_needed"
        )
    # Before the model is loaded: a port that is taken is said at once.
    listening = listen(arguments.host, arguments.port) if os.environ.get("RANK", "0") == "0" else None
    with loaded(arguments, _DAYS) as model:
        # That it has a tokenizer is found out before anyone asks.
        model.encode("x")
        engine = Engine(model, arguments.max_batch, arguments.max_waiting)
        if listening is not None:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *unused: engine.stop())
            limits = Limits(token, arguments.max_bytes, arguments.loopback)
            longest = arguments.max_length or model.job.model.positions
            served = ServedModel(arguments.name, model, engine, chat_of(model), longest, int(time.time()))
            _answer(served, limits, listening, arguments.json)
        else:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # they end when rank 0 says so
        engine.run()


def _answer(served: ServedModel, limits: Limits, listening: socket.socket, as_json: bool) -> None:
    """Answer HTTP in a thread, and say where."""
    server = Server(build_app(served, limits), lifespan="off")
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(json.dumps({"model": served.name, "url": url}) if as_json else f"serving {served.name} on {url}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
