"""`evaluate` on real ranks: the same at every layout, as transformers and lm-eval's own model, and after a kill."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import Commands
from support.evaluating import evaluate, moved, start
from support.faults import CommandLine, Ranks, wait_until
from support.programs import run_instead
from support.ranks import RankStarter
from support.training import layout, make_run, tiny_job

from orchestrator.cli.main import main
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, file_facts
from orchestrator.run_directory.results.record import Measure, Result
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.slow("ranks at four layouts, and a library of models beside them"),
]

MODEL: dict[str, Any] = {
    **{"num_layers": 2, "num_query_groups": 2, "vocab_size": 261, "activation": "swiglu", "normalization": "RMSNorm"},
    **{"add_bias_linear": False, "init_method_std": 0.3, "hidden_size": 64, "seq_length": 64},
}
LAYOUTS = {"alone": (1, 1), "tp2": (2, 1), "pp2": (1, 2)}
STRIDE = 24
HARNESS = ("choice", "rolling", "writing")
HAS_HARNESS = importlib.util.find_spec("lm_eval") is not None
needs_harness = pytest.mark.skipif(not HAS_HARNESS, reason="lm-eval is an extra, and is not installed")


def writer(tp: int = 1, pp: int = 1) -> JobSpec:
    data = {"random_tokens": True, "tokenizer": {"type": "byte_level"}}
    steps = {"train_iters": 5, "lr_warmup_iters": 1}
    return tiny_job("writer", model=MODEL, data=data, schedule=steps, parallelism=layout(tp=tp, pp=pp))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks that have imported lm-eval as well, which takes each a second."""
    modules = ("orchestrator.evaluation.harness",) if HAS_HARNESS else ()
    starter = RankStarter(tmp_path_factory.mktemp("ranks"), *modules)
    yield Ranks(starter)
    starter.close()


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), writer()), writer())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, WikiText, LAMBADA, and a task of lm-eval for each kind of request."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "book.txt").write_text("It was the best of times, it was the worst of times. " * 9)
    (folder / "wiki.test.tokens").write_text(' = A @-@ b = \n \n The game \'s 1 @,@ 000 " copies " . \n' * 5)
    passages = [{"text": f"{'so ' * number}we met again"} for number in range(1, 14)]
    (folder / "lambada.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    documents = [
        {"question": f"What is {number} + {number}?", "choices": [str(2 * number), "seven", "no"], "answer": number % 3}
        for number in range(9)
    ]
    documents.append({"question": "long " * 30, "choices": ["a", "b", "c"], "answer": 0})  # more than the positions
    (folder / "questions.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / "pages.jsonl").write_text("".join(json.dumps({"page": "abc def " * n}) + "\n" for n in (2, 30, 5)))
    of_questions = {
        "doc_to_text": "{{question}} Answer:",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
    }
    tasks: dict[str, dict[str, Any]] = {
        "choice": {
            **of_questions,
            **{"output_type": "multiple_choice", "num_fewshot": 1, "fewshot_split": "test"},
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "rolling": {
            **{"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{page}}"},
            "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
        },
    }
    tasks["writing"] = {
        **{"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{choices[answer]}}"},
        "generation_kwargs": {"until": ["e"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}, {"metric": "chrf"}],
    }
    for name, task in tasks.items():
        data = folder / ("pages.jsonl" if name == "rolling" else "questions.jsonl")
        where = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": f"toy_{name}", **where, **task}))
    return folder


def all_tasks(files: Path) -> list[EvaluationRequest]:
    text = {"add_bos": False, "seq_length": 64, "overlapping_eval": STRIDE}
    of_files: list[tuple[Any, str, dict[str, Any]]] = [
        ("text", "book.txt", text),
        ("wikitext", "wiki.test.tokens", {**text, "overlapping_eval": None}),
        ("lambada", "lambada.jsonl", {"add_bos": False, "strict": True}),
    ]
    asked = [
        EvaluationRequest(kind, f"{kind}/{name}", str(files / name), options, [file_facts(files / name)])
        for kind, name, options in of_files
    ]
    options = {"add_bos": False, "include_path": [], "num_fewshot": None, "limit": None}
    names = HARNESS if HAS_HARNESS else ()
    return asked + [
        EvaluationRequest("lm-eval", f"lm-eval/{name}", str(files / f"{name}.yaml"), options) for name in names
    ]


@pytest.fixture(scope="module")
def found(
    ranks: Ranks, trained: RunDir, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Result]]:
    """What each layout measures."""
    folder = tmp_path_factory.mktemp("layouts")
    results = {}
    for name, (tp, pp) in LAYOUTS.items():
        job = writer(tp, pp)
        if name == "alone":  # a checkpoint by itself, which has the same key as where it was
            run = RunDir(shutil.copytree(trained.checkpoint(5), folder / "copied"))
        else:
            run = moved(trained, folder / name, job)
        results[name] = evaluate(ranks, run, job, all_tasks(files), folder / f"out-{name}")
    return results


def close(a: Measure, b: Measure, tolerance: float) -> bool:
    return a.value == pytest.approx(b.value, rel=tolerance) and (a.stderr or 0) == pytest.approx(
        b.stderr or 0, rel=10 * tolerance
    )


@pytest.mark.parametrize("name", ["tp2", "pp2"])
def test_every_layout_measures_the_same(found: dict[str, list[Result]], files: Path, name: str) -> None:
    assert [result.name for result in found[name]] == [asked.name for asked in all_tasks(files)]
    for result, alone in zip(found[name], found["alone"], strict=True):
        assert (result.key, result.counts) == (alone.key, alone.counts)
        for metric, measure in alone.metrics.items():
            assert close(result.metrics[metric], measure, 1e-5), (result.name, metric)


@pytest.fixture(scope="module")
def exported(ranks: Ranks, trained: RunDir, commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    orchestrator = CommandLine(tmp_path_factory.mktemp("exported"), commands, ranks)
    said = orchestrator("checkpoint", "export", trained.path, "out", "--to", "hf")
    assert said.code == 0, said.err
    return orchestrator.folder / "out"


@needs_harness
def test_others_measure_the_same(ranks: Ranks, found: dict[str, list[Result]], files: Path, exported: Path) -> None:
    """transformers' loss of the same windows, and lm-eval's own model on the same tasks, of the export."""
    tasks = [str(files / f"{name}.yaml") for name in HARNESS]
    done = subprocess.run(
        [sys.executable, "-m", "compared_program", str(exported), str(files / "book.txt"), "64", str(STRIDE), *tasks],
        env={**os.environ, **ranks.for_commands(Path(__file__).parent), "DISABLE_MULTIPROC": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    ours = {result.name: result for result in found["alone"]}
    book = ours["text/book.txt"]
    assert book.counts["tokens"] == theirs["text"]["tokens"]
    assert book.metrics["loss"].value == pytest.approx(theirs["text"]["total"] / theirs["text"]["tokens"], rel=1e-5)
    assert ours["lm-eval/writing"].metrics["chrf"].value > 0, "some of the text is what was asked for"
    for name in HARNESS:
        metrics = ours[f"lm-eval/{name}"].metrics
        assert len(metrics) >= 2
        for metric, measure in metrics.items():
            assert measure.value == pytest.approx(theirs[name][f"{metric},none"], rel=1e-4), metric
            said = theirs[name][f"{metric}_stderr,none"]
            assert said == "N/A" if measure.stderr is None else measure.stderr == pytest.approx(said, rel=1e-4)


STOPS = """
import time
from orchestrator.evaluation.journal import Journal
plain = Journal.add
def add(self, part, places, values):
    plain(self, part, places, values)
    if part == "passages" and len(self.known(part)) > 4:
        time.sleep(300)
Journal.add = add
"""
"""In the middle of LAMBADA, until it is killed."""


def test_killed_and_gone_on_with(
    ranks: Ranks, trained: RunDir, files: Path, tmp_path: Path, found: dict[str, list[Result]], inject: Any
) -> None:
    """SIGKILL to all ranks in the middle of a task: what is there is not computed again, and the end is the same."""
    job, out = writer(2, 1), tmp_path / "out"
    run = moved(trained, tmp_path, job)
    started = start(ranks, run, job, all_tasks(files), out, inject=inject(STOPS))

    def journals() -> list[Path]:
        return [path for path in out.glob("*lambada*.part.jsonl") if path.read_text().count("\n") > 1]

    wait_until(lambda: journals() or started.poll() is not None, "two batches of LAMBADA")
    started.signal(signal.SIGKILL)
    assert started.wait() == 1
    [journal] = journals()
    lines = journal.read_text()
    finished = {path.name: path.read_bytes() for path in out.glob("iter_*.json")}
    assert len(finished) == 2, "the two tasks before it are there, and it is not"
    journal.write_text(lines[:-20])  # torn, as where the disk is cut off

    results = evaluate(ranks, run, job, all_tasks(files), out)
    assert [replace(result, checkpoint="", finished=0, seconds=0) for result in results] == [
        replace(result, checkpoint="", finished=0, seconds=0) for result in found["tp2"]
    ]
    assert {name: (out / name).read_bytes() for name in finished} == finished
    assert list(out.glob("*.part.jsonl")) == []


FAILING = """
import sys
from orchestrator.evaluation import __main__ as program
plain = program._measure
def failing(asked, *others):
    if asked.kind == "lambada":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return plain(asked, *others)
program._measure = failing
sys.exit(program.main())
"""


@pytest.mark.parametrize("tp", [1, 2])
def test_a_task_that_fails_takes_nothing_away_from_those_before_it(
    tp: int,
    ranks: Ranks,
    trained: RunDir,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "failing_program.py").write_text(FAILING)
    for name, value in ranks.for_commands(tmp_path).items():
        monkeypatch.setenv(name, value)
    run_instead(monkeypatch, "failing_program", "evaluation")
    tasks = ["--text", str(files / "book.txt"), "--lambada", str(files / "lambada.jsonl")]
    words = [*tasks, "--output", str(tmp_path / "out"), "--tensor-model-parallel-size", str(tp), "--json"]
    assert main(["evaluate", str(trained.path), *words]) == 1
    said = capfd.readouterr()
    [record] = json.loads(said.out)
    assert record["name"] == "text/book.txt"
    assert record["counts"]["tokens"] > 100
    assert "error: " in said.err
    assert "an illegal memory access" in said.err
