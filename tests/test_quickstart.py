"""What `make quickstart` does after installing: real text, training under TP=2 on the CPU, generation; and what another
library makes of the model.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.faults import Ranks, ranks_forked_in

ROOT = Path(__file__).resolve().parent.parent
PROMPT, NEW_TOKENS, SEQ_LENGTH = "import os", 60, 128
pytestmark = [
    pytest.mark.slow("it is the first thing that a person runs"),
    pytest.mark.distributed,
    pytest.mark.timeout(900),
]


COMMANDS = ("jobs.plan", "models.checkpoint", "models.data", "models.evaluate", "models.generate")
COMMANDS += ("runs.list", "runs.logs", "runs.run", "runs.status")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks from a process that has also imported the commands that are typed here, and their programs."""
    modules = (*(f"orchestrator.cli.{name}" for name in COMMANDS), "orchestrator.data.missing_datasets")
    with ranks_forked_in(tmp_path_factory.mktemp("ranks"), *modules) as made:
        yield made


def forks(ranks: Ranks) -> dict[str, str]:
    """Variables of commands that are forked as their ranks are: how they start is test_safe_path.py's."""
    return {**ranks.for_commands(), "FORKED_TOO": "orchestrator orchestrator.data"}


def quickstart(folder: Path, python: Path) -> str:
    """What it prints, with that for Python. It runs shorter than as shipped, on half the batch, and learns as much as
    is asserted here. Nothing is sent to MLflow, which nobody looks at here.
    """
    shorter = ["schedule.train_iters=50", "schedule.lr_warmup_iters=5", "checkpoint.save_interval=30"]
    smaller = ["batch.global_batch_size=4", "batch.micro_batch_size=4", "tracking.mlflow=false"]
    changes = [word for change in (*shorter, *smaller) for word in ("--set", change)]
    script = ["bash", str(ROOT / "scripts" / "quickstart.sh"), str(python), *changes]
    done = subprocess.run(script, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PARTS = ("asyncio", "multiprocessing", "unittest", "textwrap.py")
"""Of the standard library: enough to learn from."""


def python_that(place: Path, first: str, when_generating: str = ":", when_training: str = ":") -> Path:
    """Python with a small standard library, which does something of its own first, and also where it is to generate, or
    to train: a line of a shell each.
    """
    library = place.with_name("library")
    library.mkdir(exist_ok=True)
    for name in PARTS:
        if not (library / name).exists():
            (library / name).symlink_to(Path(sysconfig.get_path("stdlib"), name))
    place.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo {library}; exit; fi\n{first}\n'
        f'case "$3" in generate) {when_generating};; run) {when_training};; esac\nexec {sys.executable} "$@"\n'
    )
    place.chmod(0o755)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks) -> Path:
    """What it leaves. torchrun's own code starts the ranks that train. It, these and those that generate are forked."""
    folder = tmp_path_factory.mktemp("quickstart")
    (folder / "jobs").symlink_to(ROOT / "jobs")
    training = exported(ranks.under_torchrun())
    python = python_that(folder / "forks", exported(forks(ranks)), when_training=training)
    (folder / "said").write_text(quickstart(folder, python))
    return folder


def exported(variables: Mapping[str, str]) -> str:
    """A line of a shell that sets them."""
    return " ".join(["export", *(f"{name}={shlex.quote(value)}" for name, value in variables.items())])


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    (run,) = (folder / ".quickstart" / "runs" / "quickstart").iterdir()
    return run


def test_it_learns_and_writes_and_does_nothing_twice(folder: Path, run: Path, ranks: Ranks) -> None:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [record["values"]["validation/loss"] for record in records if "validation/loss" in record["values"]]
    assert validation[0] - validation[-1] > 2
    resolved = json.loads((run / "resolved.json").read_text())
    assert resolved["parallelism"]["tensor_model_parallel_size"] == 2
    assert (run / "checkpoints").is_dir()
    written = (folder / "said").read_text().partition("5. Generate")[2].partition("Next:")[0]
    assert len(written.partition("import os")[2].split()) > 10

    # A text is not written twice: that starts two ranks.
    quickstart(folder, python_that(folder / "ends", exported(forks(ranks)), when_generating="exit 0"))
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == len(records)


def test_the_page_s_commands_to_look_around_work(folder: Path, run: Path, ranks: Ranks) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text().partition("## Look around")[2]
    block = page.partition("```\n")[2].partition("```")[0]
    (folder / "README.md").write_text("import os\n\n\ndef path(name):\n    return os.path.join(name)\n" * 4)
    script = f'set -e\norchestrator() {{ {sys.executable} -m orchestrator "$@"; }}\n{block}'
    env = {**os.environ, **forks(ranks)}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert block.count("\norchestrator ") == 5
    assert done.stdout.count(run.name) >= 3


def test_transformers_makes_the_same_of_it(folder: Path, run: Path, ranks: Ranks) -> None:
    """Of the last checkpoint, exported: the same text, token for token, and the same perplexity."""
    env = {**os.environ, **forks(ranks), "PYTHONWARNINGS": "ignore"}
    book = Path(sysconfig.get_path("stdlib"), "textwrap.py")
    orchestrator = [sys.executable, "-m", "orchestrator"]
    subprocess.run(
        [*orchestrator, "checkpoint", "export", run, "exported", "--to", "hf"], cwd=folder, env=env, check=True
    )
    greedy = ["--prompt", PROMPT, "--temperature", "0", "--max-new-tokens", str(NEW_TOKENS)]
    # Measured as it was trained, under TP 2; written by one process, which costs less.
    greedy += ["--tensor-model-parallel-size", "1"]
    commands = [
        [
            *orchestrator,
            "evaluate",
            str(run),
            "--text",
            str(book),
            "--batch-size",
            "16",
            "--output",
            "measured",
            "--json",
        ],
        [*orchestrator, "generate", str(run), *greedy, "--json"],
    ]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen(command, cwd=folder, text=True, env=env, **pipes) for command in commands]
    said = [process.communicate(timeout=400) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    [measured], written = (json.loads(out) for out, _ in said)
    text, num_tokens, perplexity = theirs(folder / "exported", book)
    assert text.strip(), "it writes something"
    assert written["text"] == text
    assert measured["counts"]["tokens"] == num_tokens > 1000
    assert measured["metrics"]["perplexity"]["value"] == pytest.approx(perplexity, rel=1e-4)
    assert perplexity < 1000, "it has learned something"


@torch.no_grad()
def theirs(exported: Path, book: Path) -> tuple[str, int, float]:
    """What transformers makes of an export: the greedy text; of a file the number of tokens and the perplexity in
    windows without overlap.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    prompt = tokenizer(PROMPT, return_tensors="pt")
    written = model.generate(**prompt, do_sample=False, max_new_tokens=NEW_TOKENS)[0, prompt.input_ids.size(1) :]
    ids = tokenizer(book.read_text(), return_tensors="pt").input_ids
    num_tokens, total = ids.size(1) - 1, 0.0
    for first in range(0, num_tokens, SEQ_LENGTH):
        last = min(first + SEQ_LENGTH, num_tokens)
        logits, wanted = model(ids[:, first:last]).logits[0].double(), ids[0, first + 1 : last + 1]
        total += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
    return tokenizer.decode(written, skip_special_tokens=True), num_tokens, math.exp(total / num_tokens)
