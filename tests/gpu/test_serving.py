"""On several GPUs: an error of one rank of a server or of a command, while the other waits for it over NCCL."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from support.faults import PATIENCE, Ranks
from support.measured import needs_gpus
from support.serving import GREEDY, generate_with_mistake, served_job, start, with_mistakes, write_tokenizer
from support.training import make_run

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

LAYOUTS = {"tensor": {"tp": 2}, "pipeline": {"pp": 2}}


def served(name: str, tokenizer: Path) -> JobSpec:
    return served_job(tokenizer, **LAYOUTS[name], runtime={"layers": "torch"})


def jobs(text: str) -> list[JobSpec]:
    return [served(name, Path(text)) for name in LAYOUTS]


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_load_the_model_again_after_an_error_of_one(name: str, ranks: Ranks, tmp_path: Path) -> None:
    needs_gpus(2, "torch")
    job = served(name, write_tokenizer(tmp_path))
    server = start(ranks.must_train(make_run(tmp_path, job), job), env=with_mistakes(tmp_path))
    try:
        whole = server.completion(**GREEDY)["choices"][0]["text"]
        for seed, status in ((7000, 500), (7001, 500), (7002, 500), (7010, 503)):
            found, content = server.ask("/v1/completions", {**GREEDY, "seed": seed})
            assert found == status, json.loads(content)
            assert server.completion(**GREEDY)["choices"][0]["text"] == whole
    finally:
        server.process.send_signal(signal.SIGINT)
        server.process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_generate_ends_after_an_error_of_one_rank(name: str, rank: int, ranks: Ranks, tmp_path: Path) -> None:
    needs_gpus(2, "torch")
    job = served(name, write_tokenizer(tmp_path))
    run = ranks.must_train(make_run(tmp_path, job), job)
    finished = generate_with_mistake(run, rank, tmp_path)
    assert finished.returncode == 1, finished.stdout
    assert "a mistake of ours" in finished.stderr
