"""A model that is served, for tests: its tokenizer, the command that serves it, and questions to it."""

from __future__ import annotations

import functools
import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from support.faults import PATIENCE, Ranks
from support.hostile import listening_on, with_few_descriptors
from support.made_once import made_once
from support.training import layout, make_run, tiny_job

TOKEN = "a-token-for-tests-only"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|endoftext|>\n"
    "{% if message['content'] == 'too much' %}{{ message['content'] * 10 ** 10 }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
GREEDY = {"prompt": "d", "temperature": 0, "max_tokens": 6}
FAILING = """
import torch
from dataclasses import replace
from orchestrator.inference.generation.writer import Writer

plain = Writer.write

def write(self, requests, ends, *, shows):
    seeds = {request.options.seed for request in requests}
    for number, piece in enumerate(plain(self, requests, ends, shows=shows)):
        if number == 2 and seeds & {7000 + RANK, 7002}:
            raise OverflowError("a mistake of ours")
        if number == 2 and 7010 + RANK in seeds:
            raise torch.OutOfMemoryError("no memory")
        yield replace(piece, number=999) if 7020 in seeds else piece

Writer.write = write
"""
"""By the seed: an error of one rank, of both, of the memory of one, and one that rank 0 alone can have."""


def with_mistakes(folder: Path) -> dict[str, str]:
    """Variables of a command whose ranks make the mistakes of `FAILING`."""
    lines = "".join(f"    {line}\n" for line in FAILING.splitlines())
    begin = 'import os\nif "RANK" in os.environ:\n    from orchestrator import plain_megatron\n'
    (folder / "sitecustomize.py").write_text(f'{begin}    RANK = int(os.environ["RANK"])\n{lines}')
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def generate_with_mistake(
    run: RunDir, rank: int, folder: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`generate` on the ranks of a run, of which one makes a mistake at its third token."""
    command = [sys.executable, "-m", "orchestrator", "generate", str(run.path), "--prompt", "d"]
    return subprocess.run(
        [*command, "--max-new-tokens", "6", "--seed", str(7000 + rank)],
        env={**os.environ, **with_mistakes(folder), **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def served_job(tokenizer: Path, tp: int = 1, pp: int = 1, **sections: Mapping[str, Any]) -> JobSpec:
    """A small writer of several ranks."""
    return tiny_job(
        "writer",
        model={"num_query_groups": 2, "vocab_size": 300, "seq_length": 64},
        data={"random_tokens": True, "tokenizer": {"type": "huggingface", "path": str(tokenizer)}},
        **{"parallelism": layout(tp=tp, pp=pp), "schedule": {"train_iters": 4}, **sections},
    )


def writer_in(folder: Path, ranks: Ranks, shared_folder: Path) -> RunDir:
    """A run of it, of two pipeline stages: a copy of what is trained once for the processes of a test run."""

    def train(place: Path) -> None:
        job = served_job(write_tokenizer(place), pp=2)
        ranks.must_train(make_run(place / "runs", job), job)

    trained = made_once(shared_folder / "writer", train)
    shutil.copytree(trained / "runs", folder / "runs")
    [path] = (folder / "runs" / "writer").iterdir()
    return RunDir(path)


@dataclass
class Server:
    """One that runs."""

    process: subprocess.Popen[str]
    port: int
    run: RunDir

    def ask(
        self, path: str, body: Any = None, *, token: str | None = TOKEN, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Status and content of the answer; with a body it is a POST."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        sent = {"Content-Type": "application/json", **(headers or {})}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, content, sent)
        answer = connection.getresponse()
        read = answer.read().decode()
        connection.close()
        return answer.status, read

    @functools.cached_property
    def listener(self) -> int:
        """The process that answers."""
        return listening_on(self.port)

    def completion(self, **body: Any) -> dict[str, Any]:
        status, content = self.ask("/v1/completions", body)
        assert status == 200, content
        answer: dict[str, Any] = json.loads(content)
        return answer


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer of bytes, with a chat template."""
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


def start(run: RunDir, *options: str, env: Mapping[str, str] | None = None, few_descriptors: bool = False) -> Server:
    """A server of a run, on a free port."""
    limits = ("--max-batch", "4", "--max-length", "60")
    command = [sys.executable, "-m", "orchestrator", "serve", str(run.path), "--port", "0", "--json", *limits, *options]
    process = subprocess.Popen(
        with_few_descriptors(command) if few_descriptors else command,
        env={**os.environ, **(env or {}), "ORCHESTRATOR_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    said = json.loads(line)
    assert said["model"] == "writer"
    assert said["url"].startswith("http://127.0.0.1:")
    return Server(process, int(said["url"].rpartition(":")[2]), run)
