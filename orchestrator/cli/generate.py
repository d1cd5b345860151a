"""`orchestrator generate`: text from a checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson
from orchestrator.cli.running import RunsDir, check_installed
from orchestrator.cli.weights import WeightsName, weights_named
from orchestrator.errors import JobError, OrchestratorError, UserError
from orchestrator.launch.exits import before_the_report, failed_ranks, last_exception
from orchestrator.launch.processes import LAUNCH_VARIABLE, end_processes
from orchestrator.launch.render import render_program
from orchestrator.launch.runs import default_runs_dir
from orchestrator.portable import Weights
from orchestrator.spec.job import JobSpec

INFERENCE_MODULE = "orchestrator.inference"


def command(
    which: WeightsName,
    prompt: Annotated[str, typer.Option("--prompt", help="The text to continue.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens to add at most.")] = 100,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest token; higher is more varied.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Choose among the K likeliest tokens; 0: all.")] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the choice.")] = 1234,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=0, help="The checkpoint; the latest by default.")
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text with the model of a run, from its latest checkpoint, or with a checkpoint by itself.

    \b
    Example:
      orchestrator generate gpt-small --prompt "def main(" --max-new-tokens 50
      orchestrator generate 3f9a --prompt "Once" --temperature 0.8 --top-k 40 --iteration 500
    """
    weights = weights_named(which, iteration, runs_dir or default_runs_dir())
    check_family(weights)
    check_installed(weights.job)
    options = {
        "--prompt": prompt,
        "--max-new-tokens": str(max_new_tokens),
        "--temperature": str(temperature),
        "--top-k": str(top_k),
        "--seed": str(seed),
        **({"--iteration": str(iteration)} if iteration is not None else {}),
    }
    # `--name=value`, so that a prompt that starts with a dash stays a prompt.
    arguments = [
        str(weights.path),
        *(f"{name}={value}" for name, value in options.items()),
        *(["--json"] if as_json else []),
    ]
    run_inference(weights.job, arguments)


def check_family(weights: Weights) -> None:
    """Raises UserError when the model does not continue texts."""
    job, label = weights.job, weights.label
    if job.model.architecture == "bert":
        raise UserError(
            f"{label} holds a BERT: BERT predicts masked tokens from what stands on both sides of them, "
            "and does not continue a text"
        )
    if job.model.architecture == "t5":
        raise UserError(
            f"{label} holds a T5: it gives back the spans that were taken out of its encoder's "
            "input, and generation is there for decoders alone so far"
        )
    if job.model.architecture == "mamba":
        raise UserError(
            f"{label} holds a hybrid with state space layers, whose states are not kept from token to "
            "token in this version: generation is there for architecture gpt"
        )


def run_inference(job: JobSpec, arguments: list[str], module: str = INFERENCE_MODULE) -> None:
    """Run the inference program on one replica's processes; its standard output is ours.

    Raises UserError or JobError with what it says when it fails.
    """
    degrees = job.parallelism
    processes = degrees.tensor_model_parallel_size * degrees.pipeline_model_parallel_size
    script = render_program(
        job,
        python=job.launch.python or sys.executable,
        module=module,
        arguments=arguments,
        processes_per_node=processes,
    )
    launch_id = f"generate-{uuid.uuid4().hex[:8]}"
    process = subprocess.Popen(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, LAUNCH_VARIABLE: launch_id},
    )
    try:
        _, errors = process.communicate()
    except BaseException:
        end_processes(launch_id)
        process.wait()
        raise
    if process.returncode:
        raise _failure(errors)
    for line in errors.splitlines():
        if line.startswith("warning: "):
            print(line, file=sys.stderr)


def _failure(errors: str) -> OrchestratorError:
    """What went wrong, from the standard error of torchrun and its ranks."""
    own = before_the_report(errors)
    lines = [line for line in own.splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    if said is not None:
        is_ours = any(end.code == UserError.exit_code for end in failed_ranks(errors).values())
        return UserError(said) if is_ours else JobError(said)
    return JobError(f"generation failed: {last_exception(own) or (lines[-1] if lines else 'it said nothing')}")
