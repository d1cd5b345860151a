"""A model over HTTP: servers of two pipeline stages, one of them started as a person does, and real requests."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.faults import PATIENCE, CommandLine, Ranks
from support.serving import Server, generate_with_mistake, start, writer_in

from orchestrator.launch.processes.launch_processes import processes_of

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow("a tiny training, two servers of two processes, the command once"),
]

KB = ("--max-request-kb", "4")
GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def server(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, shared_folder: Path) -> Iterator[Server]:
    run = writer_in(tmp_path_factory.mktemp("served"), ranks, shared_folder)
    server = start(run, *KB, env=ranks.under_torchrun())
    yield server
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGINT)
    server.process.communicate(timeout=PATIENCE)


def test_who_may_ask(server: Server) -> None:
    assert server.ask("/health", token=None) == (200, '{"status":"ok"}')
    for token in (None, "another-token-altogether", "ä"):
        status, content = server.ask("/v1/models", token=token and token.encode().decode("latin-1"))
        assert status == 401
        assert json.loads(content)["error"]["type"] == "authentication_error"
    status, content = server.ask("/v1/models")
    assert (status, json.loads(content)["data"][0]["id"]) == (200, "writer")
    status, content = server.ask("/v1/models", headers={"Host": "attacker.example"})
    assert (status, "not to attacker.example" in content) == (403, True)
    for host in ("127.0.0.1.example", "[::1", "localhost:80:80", "10.0.0.1", ""):
        assert server.ask("/v1/models", headers={"Host": host})[0] == 403, host
    for host in ("127.0.0.2", "LOCALHOST", "[::1]:8000", "[::1]"):
        assert server.ask("/v1/models", headers={"Host": host})[0] == 200, host


def test_texts_are_those_of_the_command(server: Server, orchestrator: CommandLine) -> None:
    """Which runs on one process what was trained, and is served, on two."""
    asked = [{"prompt": "def main("}, {"prompt": "x", "temperature": 1, "seed": 9, "top_k": 20}]
    asked += [{"prompt": "abc", "num_beams": 3}]
    (orchestrator.folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, asked)))
    options = ("--temperature", "0", "--max-new-tokens", "6", "--pipeline-model-parallel-size", "1")
    said = orchestrator("generate", server.run.path, "--file", "prompts.jsonl", *options)
    assert said.code == 0, said.err
    texts = [json.loads(line)["text"] for line in said.out.splitlines()]
    first = server.completion(prompt="def main(", **GREEDY, logprobs=1)
    [choice] = first["choices"]
    assert (choice["text"], choice["finish_reason"]) == (texts[0], "length")
    assert len(choice["logprobs"]["token_logprobs"]) == 6
    assert first["usage"] == {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}
    drawn = server.completion(prompt="x", max_tokens=6, seed=9, top_k=20)
    assert drawn["choices"][0]["text"] == texts[1]
    assert server.completion(prompt="abc", **GREEDY, num_beams=3)["choices"][0]["text"] == texts[2]


def test_a_stream_is_the_text_in_pieces(server: Server) -> None:
    whole = server.completion(prompt=["ab", "cd"], max_tokens=12, seed=4)
    body = {"prompt": ["ab", "cd"], "max_tokens": 12, "seed": 4, "stream": True}
    status, content = server.ask("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert status == 200
    *lines, last = [line.removeprefix("data: ") for line in content.split("\n\n") if line]
    assert last == "[DONE]"
    *pieces, usage = [json.loads(line) for line in lines]
    assert usage["usage"] == whole["usage"]
    assert len(pieces) > 2, "token by token"
    for choice in whole["choices"]:
        own = [each for piece in pieces for each in piece["choices"] if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == [choice["finish_reason"]]


def test_requests_that_come_together_get_what_each_gets_alone(server: Server) -> None:
    bodies = [{"prompt": "p" * length, "max_tokens": 3 + length, "seed": length} for length in range(1, 9)]
    alone = [server.completion(**body)["choices"][0]["text"] for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as threads:
        together = list(threads.map(lambda body: server.completion(**body)["choices"][0]["text"], bodies))
    assert together == alone
    several = server.completion(prompt="pp", max_tokens=5, seed=2, n=3)["choices"]
    assert several[0]["text"] == alone[1]
    assert len({choice["text"] for choice in several}) == 3


def test_a_conversation_is_written_as_the_tokenizer_says(server: Server) -> None:
    turns = [{"role": "user", "content": "hi"}]
    options = {"max_tokens": 5, "seed": 3}
    status, content = server.ask("/v1/chat/completions", {"messages": turns, **options})
    assert status == 200, content
    [choice] = json.loads(content)["choices"]
    plain = server.completion(prompt="user: hi<|endoftext|>\nassistant: ", **options)
    assert choice["message"] == {"role": "assistant", "content": plain["choices"][0]["text"]}
    status, content = server.ask("/v1/chat/completions", {"messages": turns, **options, "stream": True})
    deltas = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in content.split("\n\n")[:-2]]
    assert "".join(deltas) == choice["message"]["content"]


def test_a_conversation_that_its_template_makes_too_much_of_is_refused(server: Server) -> None:
    for content, expected in (("too much", 400), ("hi", 200)):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        status, answer = server.ask("/v1/chat/completions", body)
        assert (status, "MiB of memory" in answer) == (expected, expected == 400), answer


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the request is not JSON"),
        (b"[" * 3000, 400, ""),
        ({"prompt": "x", "nonsense": 1}, 400, "nonsense is not an option; there are model, temperature, top_p"),
        ({"prompt": "x", "max_new_tokens": 1}, 400, "max_new_tokens is not an option; did you mean max_tokens?"),
        ({"prompt": "x", "temprature": 1}, 400, "temprature is not an option; did you mean temperature?"),
        ({"prompt": "x", "stream_options": {"include_usages": True}}, 400, "did you mean include_usage?"),
        ([1], 400, "the request: expects a mapping"),
        ({"prompt": "x", "repeat-penalty": 1}, 400, "did you mean repetition_penalty?"),
        ({"messages": [], "n": 1}, 400, "messages belongs to POST /v1/chat/completions"),
        ({"prompt": "x" * 60, "max_tokens": 1}, 400, "the prompt has 60 tokens, but this server takes 60"),
        ({"prompt": "x", "logit_bias": {"5": 1}}, 400, "logit_bias is not supported"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature: must be at least 0, not -1.0"),
        (
            {"prompt": "x", "max_tokens": 60},
            400,
            "= 61, but this server takes 60 for both together; ask for at most 59 new tokens, "
            "or start the server with --max-length 61",
        ),
        ({"prompt": "x", "max_tokens": 10**12}, 400, "max_new_tokens: must be at most 2^31 - 1, not 1000000000000"),
        ({"prompt": [[5, 300]]}, 400, "ids outside the vocabulary of 300 tokens"),
        ({"prompt": []}, 400, "prompt: the list is empty"),
        ({"prompt": "\ud800"}, 400, "holds half of a surrogate pair"),
        ({"prompt": "x", "\ud800": 1}, 400, "holds half of a surrogate pair"),
        (b'{"prompt": "x", "\xed\xa0\x80": 1}', 400, "the request is not JSON"),
        (b'{"prompt": "x", "model": "\xed\xa0\x80"}', 400, "the request is not JSON"),
        ('{"prompt": "x", "model": "\\ud800"}'.encode("utf-16"), 400, "the request is not JSON"),
        ({"prompt": ["x", "y", "z"], "n": 2}, 400, "6 texts or beams"),
        ({"prompt": "x", "n": 5}, 400, "5 texts or beams are requested at once; at most 4 are allowed"),
        ({"prompt": "x", "num_beams": 5, "temperature": 0}, 400, "5 texts or beams"),
        ({"prompt": "x", "model": "gpt-5"}, 404, "there is no model gpt-5; this is writer"),
        (
            {"prompt": "x" * 5000},
            413,
            "has at most 4096 bytes: send less, or start the server with a larger --max-request-kb",
        ),
    ],
)
def test_bad_requests_are_told_what_is_wrong(server: Server, body: Any, status: int, message: str) -> None:
    found, content = server.ask("/v1/completions", body)
    assert found == status, content
    assert message in json.loads(content)["error"]["message"]


def test_a_form_of_a_web_page_is_refused(server: Server) -> None:
    """A page may send plain text to any server without asking it first, and no JSON."""
    status, _ = server.ask("/v1/completions", {"prompt": "x"}, headers={"Content-Type": "text/plain"})
    assert status == 415
    assert server.ask("/v1/completions", b"{}", token="wrong-token-wrong-token")[0] == 401


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "/docs",
            None,
            404,
            "GET /docs does not exist: GET /health, GET /v1/models, POST /v1/completions, POST /v1/chat",
        ),
        ("/v1/embeddings", {"input": "x"}, 404, "POST /v1/embeddings does not exist"),
        ("/v1/completions", None, 405, "GET /v1/completions is not supported, but POST is"),
        ("/v1/models", {}, 405, "POST /v1/models is not supported, but GET is"),
    ],
)
def test_another_path_and_another_method_are_refused_in_the_same_words(
    server: Server, path: str, body: Any, status: int, message: str
) -> None:
    found, content = server.ask(path, body)
    assert found == status
    error = json.loads(content)["error"]
    assert message in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", status)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_command_ends_every_rank(server: Server, number: signal.Signals) -> None:
    """Runs last: the first server still answers after all that it was asked. It is interrupted, and ends torchrun and
    the ranks. The second one has nothing that was forked: it is killed, which torchrun and the ranks notice themselves.
    """
    ended = server if number == signal.SIGINT else start(server.run, *KB)
    assert len(ended.completion(prompt="x", **GREEDY)["choices"]) == 1
    children = Path(f"/proc/{ended.process.pid}/task/{ended.process.pid}/children").read_text().split()
    variables = Path(f"/proc/{children[0]}/environ").read_bytes().split(b"\0")
    [launch] = [each.partition(b"=")[2].decode() for each in variables if each.startswith(b"ORCHESTRATOR_LAUNCH_ID=")]
    ranks = [one for one in processes_of(launch).values() if "RANK" in one]
    assert len({one["RANK"] for one in ranks}) == 2
    ended.process.send_signal(number)
    _, said = ended.process.communicate(timeout=PATIENCE)
    assert "Warning: " not in said, "what libraries warn programmers of is nothing to a person"
    assert ended.process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while processes_of(launch) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(launch) == {}


def test_other_hosts_need_a_token(orchestrator: CommandLine) -> None:
    said = orchestrator("serve", "none", "--host", "0.0.0.0")
    assert said.code == 2
    assert "can be reached from other machines: give a token" in said.err
    said = orchestrator("serve", "none", "--token", "short")
    assert (said.code, "at least 16 characters" in said.err) == (2, True)


@pytest.mark.parametrize("rank", [0, 1])
def test_generate_tells_the_mistake_and_not_that_another_rank_was_lost(
    rank: int, server: Server, ranks: Ranks, tmp_path: Path
) -> None:
    finished = generate_with_mistake(server.run, rank, tmp_path, ranks.for_commands(tmp_path))
    assert finished.returncode == 1
    assert "OverflowError: a mistake of ours" in finished.stderr
    assert "gloo" not in finished.stderr
