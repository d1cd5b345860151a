"""A server that is asked what nobody should ask: real ones, of one process and of two, which go on answering."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clock import UndisturbedClock
from support.depth import examples
from support.faults import PATIENCE, Ranks
from support.hostile import (
    FEW_DESCRIPTORS,
    LARGEST_ANSWER,
    NUMBERS,
    TEXTS,
    VALUES,
    as_json,
    bodies,
    half_open,
    watched,
)
from support.serving import (
    GREEDY,
    TOKEN,
    Server,
    start,
    with_mistakes,
    writer_in,
)

from orchestrator.inference.serving.protocol import ChatRequest, CompletionRequest
from orchestrator.run_directory.rundir import RunDir

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow("a tiny training, and servers of one process and of two"),
]

OPTIONS: dict[str, Any] = {
    "max_tokens": st.integers(1, 4) | NUMBERS,
    "temperature": st.floats(0, 2) | NUMBERS,
    "top_p": st.floats(0, 1) | NUMBERS,
    "top_p_decay": st.floats(0, 1) | NUMBERS,
    "top_p_bound": st.floats(0, 1) | NUMBERS,
    "repetition_penalty": st.floats(0.5, 2) | NUMBERS,
    "length_penalty": st.floats(-2, 2) | NUMBERS,
    "top_k": st.integers(0, 5) | NUMBERS,
    "min_tokens": st.integers(0, 2) | NUMBERS,
    "num_beams": st.integers(1, 4) | NUMBERS,
    "n": st.integers(1, 4) | NUMBERS,
    "seed": st.integers(0, 9) | NUMBERS,
    "stop": TEXTS | st.lists(TEXTS, max_size=40) | VALUES,
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}) | VALUES,
    "model": st.just("writer") | TEXTS,
    "user": TEXTS,
    "ignore_end": st.booleans(),
    "add_bos": st.booleans(),
}
IDS = st.lists(st.integers(0, 299) | NUMBERS, max_size=6)
COMPLETIONS = bodies(
    {
        **OPTIONS,
        "prompt": TEXTS | IDS | st.lists(TEXTS, max_size=5) | st.lists(IDS, max_size=5) | VALUES,
        "logprobs": st.integers(0, 1) | NUMBERS,
    }
)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]) | TEXTS}, optional={"text": TEXTS}),
    max_size=3,
)
TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]) | TEXTS, "content": TEXTS | PARTS}),
    max_size=4,
)
CHATS = bodies(
    {
        **OPTIONS,
        "messages": TURNS | VALUES,
        "max_completion_tokens": st.integers(1, 4) | NUMBERS,
        "logprobs": st.booleans(),
    }
)


@pytest.fixture(scope="module")
def run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, shared_folder: Path) -> RunDir:
    return writer_in(tmp_path_factory.mktemp("served"), ranks, shared_folder)


def ended(server: Server) -> None:
    assert server.process.poll() is None, "it still runs"
    server.process.send_signal(signal.SIGINT)
    server.process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def alone(run: RunDir, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One process, which is forked, with few descriptors."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "sitecustomize.py").write_text(FEW_DESCRIPTORS)
    server = start(run, "--pipeline-model-parallel-size", "1", few_descriptors=True, env=ranks.for_commands(folder))
    yield server
    ended(server)


@pytest.fixture(scope="module")
def pair(run: RunDir, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two processes, which are forked, and make mistakes where they are asked to."""
    folder = tmp_path_factory.mktemp("failing")
    server = start(run, env={**with_mistakes(folder), **ranks.for_commands(folder)})
    yield server
    ended(server)


@pytest.fixture(scope="module", params=["alone", "pair"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def test_every_field_is_drawn() -> None:
    assert set(CompletionRequest.model_fields) == {*OPTIONS, "prompt", "logprobs"}
    assert set(ChatRequest.model_fields) == {*OPTIONS, "messages", "max_completion_tokens"}


def test_no_request_of_the_interface_is_too_much(server: Server, request: pytest.FixtureRequest) -> None:
    """No 500, no long answer, and `/health` answers at once. One process reads them all; the second has fewer to follow
    it in.
    """
    statuses = set()
    count = 75 if request.node.callspec.params["server"] == "alone" else 25

    @settings(max_examples=examples(count), suppress_health_check=list(HealthCheck))
    @given(COMPLETIONS, CHATS)
    def asks(completion: dict[str, Any], chat: dict[str, Any]) -> None:
        for path, body in (("/v1/completions", completion), ("/v1/chat/completions", chat)):
            status, content = server.ask(path, as_json(body))
            assert status in (200, 400, 404), (status, content)
            assert len(content.encode()) <= LARGEST_ANSWER
            statuses.add(status)

    with watched(server.port, process=server.listener):
        asks()
    assert statuses >= {200, 400}
    assert server.ask("/v1/completions", GREEDY)[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b"1," * 500_000 + b"null]}",
        b'{"prompt":[' + b'"a",' * 200_000 + b"1]}",
        b'{"prompt":[' + b"[1]," * 200_000 + b"2]}",
        b'{"prompt":[' + b"[]," * 300_000 + b"[]]}",
        b'{"prompt":' + b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"prompt":"' + b"a" * 1_000_000 + b'"}',
        b'{"prompt":"' + b"\\ud83d\\ude00" * 80_000 + b'"}',
        b'{"prompt":"' + b"\\ud800" * 150_000 + b'"}',
        b'{"prompt":"x","stop":[' + b"1," * 500_000 + b"1]}",
        b'{"prompt":"x","stop":["' + b"a" * 1_000_000 + b'"]}',
        b'{"prompt":"x","model":"' + b"m" * 1_000_000 + b'"}',
        b'{"prompt":"x","' + b"k" * 1_000_000 + b'":1}',
        b'{"prompt":"x",' + b",".join(b'"k%d":1' % number for number in range(80_000)) + b"}",
        b'{"prompt":"x",' + b",".join([b'"seed":1'] * 80_000) + b',"seed":null}',
        b'{"prompt":"x","seed":' + b"1" * 1_000_000 + b"}",
        b'{"prompt":"x","seed":1' + b"0" * 4000 + b',"max_tokens":1' + b"0" * 4000 + b"}",
        b'{"prompt":"x","stream_options":{' + b",".join(b'"k%d":2' % number for number in range(80_000)) + b"}}",
        b'{"prompt":"x","logit_bias":{' + b",".join(b'"%d":2' % number for number in range(80_000)) + b"}}",
        b'{"messages":[' + b"1," * 500_000 + b"1]}",
        b'{"messages":[' + b'{"role":"user","content":""},' * 30_000 + b"1]}",
        b'{"messages":[{"role":"user","content":[' + b"1," * 400_000 + b"1]}]}",
        b'{"messages":[{"role":"' + b"r" * 1_000_000 + b'","content":""}]}',
        b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:'
        + b";" * 900_000
        + b'"}}]}]}',
        b"1" * 1_000_000,
        b"\xff" * 1_000_000,
        b"[" + b"0," * 500_000 + b"0]",
    ],
    ids=range(27),
)
def test_a_request_of_a_megabyte_is_answered_at_once_and_in_few_words(alone: Server, body: bytes) -> None:
    path = "/v1/chat/completions" if b'"messages"' in body else "/v1/completions"

    def ask() -> None:
        status, content = alone.ask(path, body)
        assert (status in (200, 400), len(content) < 3000) == (True, True), (status, content[:300])

    with watched(alone.port, process=alone.listener):
        assert UndisturbedClock(alone.listener).seconds(ask) < 5


@pytest.mark.parametrize(
    ("options", "bytes_a_token"),
    [({}, 16), ({"logprobs": 1}, 48), ({"stream": True}, 200), ({"stream": True, "stop": ["a" * 512] * 32}, 200)],
)
def test_the_tokens_asked_for_bound_an_answer(alone: Server, options: dict[str, Any], bytes_a_token: int) -> None:
    """A stream has at most a piece for each, and no empty one, even while a stop text keeps what is written back."""
    status, content = alone.ask("/v1/completions", {"prompt": "d", "max_tokens": 55, "n": 4, **options})
    assert status == 200
    assert len(content.encode()) <= 4 * 55 * bytes_a_token + 1000
    if "stream" in options:
        *pieces, end = [line.removeprefix("data: ") for line in content.strip().split("\n\n")]
        choices = [json.loads(piece)["choices"][0] for piece in pieces]
        assert end == "[DONE]"
        assert len(choices) <= 4 * 55
        assert all(choice["text"] or choice["finish_reason"] for choice in choices)


def test_many_wrong_requests_of_a_megabyte_at_once(alone: Server) -> None:
    wrong = b'{"prompt":[' + b"1," * 500_000 + b"null]}"
    with watched(alone.port, process=alone.listener), ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: alone.ask("/v1/completions", wrong)[0], range(24)))
    assert set(found) == {400}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"num_beams": 2, "length_penalty": 2000}, 400),
        ({"num_beams": 2, "length_penalty": -1e308}, 400),
        ({"num_beams": 2, "length_penalty": 10}, 200),
        ({"num_beams": 2, "length_penalty": -10}, 200),
        ({"repetition_penalty": 1e308}, 400),
        ({"repetition_penalty": 1e-320}, 400),
        ({"repetition_penalty": 1000}, 200),
        ({"temperature": 1e308}, 400),
        ({"temperature": 1e-320, "logprobs": 1}, 200),
        ({"temperature": True}, 400),
        ({"n": True}, 400),
        ({"top_p": 1e-320}, 200),
        ({"prompt": [True]}, 400),
        ({"prompt": [10**400]}, 400),
        ({"prompt": [-1]}, 400),
        ({"seed": -(10**400)}, 200),
        ({"stop": ["a" * 513]}, 400),
        ({"stop": ["a" * 512] * 32}, 200),
        ({"max_tokens": 2**31 - 1}, 400),
        ({"min_tokens": 2**31 - 1}, 400),
    ],
)
def test_numbers_have_bounds(pair: Server, body: dict[str, Any], status: int) -> None:
    found, content = pair.ask("/v1/completions", {"prompt": "d", "max_tokens": 4, **body})
    assert found == status, content


@pytest.mark.parametrize(
    ("seed", "status"), [(7000, 500), (7001, 500), (7002, 500), (7010, 503), (7011, 500), (7020, 500)]
)
def test_an_error_of_a_rank_is_answered_and_the_next_text_is_as_ever(pair: Server, seed: int, status: int) -> None:
    whole = pair.completion(**GREEDY)["choices"][0]["text"]
    with watched(pair.port, process=pair.listener):
        found, content = pair.ask("/v1/completions", {**GREEDY, "seed": seed})
        assert (found, json.loads(content)["error"]["type"]) == (status, "server_error")
        assert pair.completion(**GREEDY)["choices"][0]["text"] == whole


def test_an_error_within_a_stream_ends_it_and_who_waits_meanwhile_is_answered(pair: Server) -> None:
    status, content = pair.ask("/v1/completions", {**GREEDY, "seed": 7001, "stream": True})
    assert status == 200
    assert json.loads(content.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == 500
    with ThreadPoolExecutor(6) as threads:
        found = list(
            threads.map(lambda seed: pair.ask("/v1/completions", {**GREEDY, "seed": seed})[0], (1, 2, 7000, 3, 4))
        )
    assert set(found) <= {200, 500}
    assert 500 in found
    assert pair.ask("/v1/completions", GREEDY)[0] == 200


def test_callers_who_hang_up_leave_nothing_behind(server: Server) -> None:
    """Before the body is there, while a text is written, and in the middle of a stream."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    for body in ({"prompt": "d", "max_tokens": 50}, {"prompt": "d", "max_tokens": 50, "stream": True}):
        content = as_json(body)
        for sent in (content[:10], content):
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as caller:
                    caller.sendall(f"{head}{len(content)}\r\n\r\n".encode() + sent)
                    if body.get("stream") and sent is content:
                        caller.recv(10)
    assert server.ask("/v1/completions", GREEDY)[0] == 200


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "CONNECT", "X" * 500])
def test_other_methods_and_long_paths_are_refused_in_few_words(alone: Server, method: str) -> None:
    for path in ("/v1/completions", "/" + "%22" * 4000, "//example.com/x/", "/v1/models/", "/%00%ff"):
        connection = http.client.HTTPConnection("127.0.0.1", alone.port, timeout=PATIENCE)
        connection.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert (answer.status in (400, 404, 405), len(answer.read()) < 1000) == (True, True)
        connection.close()


def test_more_connections_than_descriptors_shut_nobody_out(alone: Server) -> None:
    with half_open(alone.port), watched(alone.port, process=alone.listener):
        assert alone.ask("/v1/completions", GREEDY)[0] == 200
        time.sleep(1)
    assert len(list(Path(f"/proc/{alone.process.pid}/fd").iterdir())) < 100
