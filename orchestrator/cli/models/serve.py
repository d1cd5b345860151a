"""`orchestrator serve`: a model over HTTP."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from typing import Annotated, Any

import typer

from orchestrator.cli.common import AsJson, RunsDir
from orchestrator.cli.listening import Host, Port, Token, check_token
from orchestrator.cli.models.generate import (
    NumSpeculativeTokens,
    PipelineParallel,
    TensorParallel,
    at_degrees,
    check_family,
    draft_arguments,
    layout_arguments,
    run_inference,
)
from orchestrator.cli.models.weights import Iteration, WeightsName, weights_named
from orchestrator.errors import MissingDependency, UserError
from orchestrator.http.listening import TOKEN_VARIABLE, is_loopback, listen
from orchestrator.launch.start_checks import check_installed
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.generation import check_drafts

SERVING_MODULE = "orchestrator.inference.serving"
_TEXT_KB, _IMAGES_KB = 1024, 16 * 1024
"""How large requests may be by default: texts, and photographs, which JSON makes a third larger."""


MaxWaiting = Annotated[int, typer.Option("--max-waiting", min=1, help="Waiting texts; more are rejected (429).")]
MaxRequestKb = Annotated[
    int | None,
    typer.Option(
        "--max-request-kb",
        min=1,
        help=f"Maximum size of a request; larger ones are rejected (413). {_TEXT_KB} by default, or {_IMAGES_KB} if "
        "the model takes images.",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length", min=2, help="Maximum tokens of a prompt and its text; the model's positions by default."
    ),
]


def command(
    which: WeightsName,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Model name for clients; the job's name by default.")
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Texts generated at a time.")] = 32,
    max_waiting: MaxWaiting = 256,
    max_request_kb: MaxRequestKb = None,
    max_length: MaxLength = None,
    tensor_model_parallel_size: TensorParallel = None,
    pipeline_model_parallel_size: PipelineParallel = None,
    num_speculative_tokens: NumSpeculativeTokens = 0,
    iteration: Iteration = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Serve the model of a checkpoint over an OpenAI-compatible HTTP API, until Ctrl-C.

    \b
    Example:
      orchestrator serve gpt-small
      ORCHESTRATOR_TOKEN=$(cat token) orchestrator serve gpt-small --host 0.0.0.0 --port 8080
    """
    loopback = is_loopback(host)
    if token is None and not loopback:
        raise UserError(
            f"--host {host} can be reached from other machines: give a token for clients, with --token or "
            f"{TOKEN_VARIABLE}",
            code="http_token_needed",
        )
    check_token(token)
    weights = weights_named(which, iteration, runs_dir or default_runs_dir())
    check_family(weights)
    check_drafts(weights.job.model, num_speculative_tokens, weights.label)
    job = at_degrees(weights.job, tensor_model_parallel_size, pipeline_model_parallel_size)
    check_installed(job)
    _check_extra(weights)
    if job.launch.template is None:  # one of the user's own may start it elsewhere
        listen(host, port).close()
    usual_kb = _IMAGES_KB if job.model.has_vision else _TEXT_KB
    arguments = [
        str(weights.path),
        *layout_arguments(tensor_model_parallel_size, pipeline_model_parallel_size),
        *draft_arguments(num_speculative_tokens),
        f"--name={name or weights.job.name}",
        f"--host={host}",
        f"--port={port}",
        *(["--loopback"] if loopback else []),
        *(["--json"] if as_json else []),
        f"--max-batch={max_batch}",
        f"--max-waiting={max_waiting}",
        f"--max-bytes={(max_request_kb or usual_kb) * 1024}",
        *([f"--max-length={max_length}"] if max_length is not None else []),
        *([f"--iteration={iteration}"] if iteration is not None else []),
    ]
    signal.signal(signal.SIGTERM, _interrupt)  # what ends us ends the ranks
    # All that the ranks say is shown; what libraries warn their programmers of is no news of a server.
    variables = {"PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore")}
    if token is not None:
        variables[TOKEN_VARIABLE] = token
    run_inference(job, arguments, SERVING_MODULE, "serving", shows_all=True, env=variables)


def _check_extra(weights: Weights) -> None:
    """Raises MissingDependency when this Python, if it is the one that will serve, lacks what serving needs."""
    if weights.job.launch.python is None:
        missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingDependency(
                f"serving needs {' and '.join(missing)}, which this Python lacks: "
                "pip install 'megatron-orchestrator[serve]'"
            )


def _interrupt(number: int, frame: Any) -> None:
    sys.exit(128 + number)
