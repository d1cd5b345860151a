"""What the programs that load a network have in common: which one, at which layout, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.inference.model import Model, load


def add_weights(parser: argparse.ArgumentParser) -> None:
    """The arguments that `loaded` takes."""
    parser.add_argument("weights", type=Path, help="folder of a run or of a checkpoint")
    parser.add_argument("--iteration", type=int, help="the checkpoint of this iteration instead of the newest")
    for name in ("--tensor-model-parallel-size", "--pipeline-model-parallel-size"):
        parser.add_argument(name, type=int, help="as it was trained by default")
    parser.add_argument("--num-speculative-tokens", type=int, default=0, help="tokens that are drafted at a time")


def loaded(arguments: argparse.Namespace, patience: float | None = None) -> Model:
    """The model that the arguments name; see `load` for `patience` and for what is raised."""
    return load(
        arguments.weights,
        iteration=arguments.iteration,
        tensor_model_parallel_size=arguments.tensor_model_parallel_size,
        pipeline_model_parallel_size=arguments.pipeline_model_parallel_size,
        num_speculative_tokens=arguments.num_speculative_tokens,
        patience=patience,
    )


def exit_code(work: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Do the work; 0, or the exit code of what went wrong, which standard error is told."""
    try:
        work(arguments)
    except OrchestratorError as error:
        # In one write: every rank says it, and print would write the end of the line by itself.
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0
