"""Starting the program that converts checkpoints: what `checkpoint export`, `import` and `reshape` share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.data.indexed_dataset.locking import locked
from orchestrator.errors import DataIsHeld, JobError, UserError
from orchestrator.quantities import disk_size
from orchestrator.safe_path import module_command

EXCHANGE_MODULE = "orchestrator.conversion"


def spec_around(name: str, model: Any, dtype: Any, tokenizer: Any) -> dict[str, Any]:
    """A job that could train an imported model on: what a person edits."""
    return {
        "name": name,
        "model": model,
        "precision": {"dtype": dtype},
        "data": {"random_tokens": True, **({"tokenizer": tokenizer} if tokenizer else {})},
        "optimizer": {"lr": 1e-5},
        "schedule": {"train_iters": 100},
        "batch": {"micro_batch_size": 1, "global_batch_size": 8},
    }


def convert(*arguments: str) -> dict[str, Any]:
    """Run the program; its progress goes to our standard error. Raises what it says went wrong."""
    process = subprocess.run(
        module_command(EXCHANGE_MODULE, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        # Libraries say what they lack when they are imported; progress alone is to be seen.
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    try:
        answer: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        answer = {"error": f"the conversion ended with exit code {process.returncode}", "exit_code": 1}
    if "error" in answer:
        raise (UserError if answer["exit_code"] == UserError.exit_code else JobError)(
            answer["error"], code=answer.get("code")
        )
    return answer


@contextmanager
def alone(folder: Path, otherwise: str) -> Iterator[None]:
    """A folder for this process alone, without what a killed one has left, which goes afterwards.

    Raises UserError, `otherwise`, while another process has it.
    """
    try:
        with locked(folder, wait=False):
            try:
                for left in folder.iterdir():
                    if left.is_dir():  # beside the lock there are only these and the spec, which is written anew
                        shutil.rmtree(left)
                yield
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except DataIsHeld as error:
        raise UserError(otherwise, code="output_is_held") from error


def size_of(done: Mapping[str, Any]) -> str:
    """How much was written, for people."""
    return disk_size(int(done["bytes"]))
