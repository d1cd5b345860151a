"""`orchestrator generate`: text from a checkpoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.common import AsJson, RunsDir
from orchestrator.cli.models.weights import Iteration, WeightsName, weights_named
from orchestrator.errors import JobError, OrchestratorError, UserError
from orchestrator.launch.processes.child_commands import tied
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE, end_processes
from orchestrator.launch.scripts.render import refuse_missing_python, render_program, script_environment
from orchestrator.launch.start_checks import check_installed
from orchestrator.planning.layout.replica import at_layout
from orchestrator.run_directory.exits.classification import before_the_report, ended_by, failed_ranks, last_exception
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.safe_path import module_command
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.generation import check_drafts, options_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.prompts import check_files, read_prompts
from orchestrator.spec.vision import MARK, marks_problem

_KEPT_LINES = 2000
"""Of standard error, in which the cause of a failure is looked for."""
_TORCHRUN = re.compile(r"[IWE]\d{4} .*torch/distributed/")
"""Lines of torchrun's loggers."""
INFERENCE_MODULE = "orchestrator.inference"
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}

TensorParallel = Annotated[
    int | None,
    typer.Option("--tensor-model-parallel-size", min=1, help="Tensor-parallel size; as in training by default."),
]
PipelineParallel = Annotated[
    int | None,
    typer.Option("--pipeline-model-parallel-size", min=1, help="Pipeline-parallel size; as in training by default."),
]
NumSpeculativeTokens = Annotated[
    int,
    typer.Option(
        "--num-speculative-tokens",
        min=0,
        metavar="N",
        help="Draft N tokens at a time with the layers of multi-token prediction; the model verifies them in one pass.",
    ),
]


File = Annotated[
    Path | None,
    typer.Option("--file", metavar="PROMPTS.jsonl", help='Continue each line\'s "prompt"; results are lines of JSON.'),
]
Interactive = Annotated[bool, typer.Option("--interactive", help="Continue each line of standard input as it arrives.")]
Image = Annotated[
    list[Path] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="An image for an `<image>` in the prompt or in every line; may be repeated, in order.",
    ),
]
Temperature = Annotated[
    float | None, typer.Option(help="0 takes the most likely token; higher values vary more; 1 by default.")
]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the most likely tokens that together have this probability.")
]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1, repeated tokens become less likely.")]
LengthPenalty = Annotated[float | None, typer.Option(help="Beam search: above 0 favours long texts; 1 by default.")]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated.")
]
LogProbabilities = Annotated[
    bool, typer.Option("--log-probabilities", help="Report each token's log probability (with --json or --file).")
]


def command(
    which: WeightsName,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="The text to continue.")] = None,
    file: File = None,
    interactive: Interactive = False,
    image: Image = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Maximum number of new tokens; 100 by default.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="Minimum number of new tokens.")] = None,
    temperature: Temperature = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the K most likely tokens; 0: all.")] = None,
    top_p: TopP = None,
    top_p_decay: Annotated[float | None, typer.Option(help="Multiply top-p by this after each token.")] = None,
    top_p_bound: Annotated[float | None, typer.Option(help="Lower bound of the decayed top-p.")] = None,
    repetition_penalty: RepetitionPenalty = None,
    beams: Annotated[int | None, typer.Option("--beams", help="Beam search over this many sequences.")] = None,
    length_penalty: LengthPenalty = None,
    stop: Stop = None,
    add_bos: Annotated[bool, typer.Option("--add-bos", help="Begin with the tokenizer's BOS token.")] = False,
    log_probabilities: LogProbabilities = False,
    seed: Annotated[int | None, typer.Option(help="Random seed; 1234 by default.")] = None,
    tensor_model_parallel_size: TensorParallel = None,
    pipeline_model_parallel_size: PipelineParallel = None,
    num_speculative_tokens: NumSpeculativeTokens = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Prompts of --file at a time.")] = 32,
    iteration: Iteration = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Continue texts with the latest checkpoint of a run, or with a checkpoint from its folder.

    \b
    Example:
      orchestrator generate gpt-small --prompt "def main(" --max-new-tokens 50
      orchestrator generate 3f9a --prompt "Once" --temperature 0.8 --top-p 0.9 --iteration 500
      orchestrator generate gpt-small --file prompts.jsonl --beams 4 > texts.jsonl
      orchestrator generate llava --prompt "<image> What is this?" --image cat.jpg
    """
    options = _options(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        top_p_decay=top_p_decay,
        top_p_bound=top_p_bound,
        repetition_penalty=repetition_penalty,
        num_beams=beams,
        length_penalty=length_penalty,
        stop=tuple(stop) if stop else None,
        add_bos=add_bos or None,
        log_probabilities=log_probabilities or None,
        seed=seed,
    )
    prompts = _Prompts(prompt, file, interactive, image or [], batch_size)
    prompts.check_named(tells_probabilities=log_probabilities, as_json=as_json)
    if num_speculative_tokens and (beams or 1) > 1:
        raise UserError(
            "--num-speculative-tokens has no effect with --beams: a search over beams computes each token after the "
            "other; leave one out",
            code="option_without_effect",
        )
    weights = weights_named(which, iteration, runs_dir or default_runs_dir())
    check_family(weights)
    check_drafts(weights.job.model, num_speculative_tokens, weights.label)
    prompts.check(options, sees=weights.job.model.has_vision)
    job = at_degrees(weights.job, tensor_model_parallel_size, pipeline_model_parallel_size)
    check_installed(job)
    layout = layout_arguments(tensor_model_parallel_size, pipeline_model_parallel_size)
    layout += draft_arguments(num_speculative_tokens)
    arguments = [str(weights.path), *layout, *prompts.arguments(), f"--options={json.dumps(options)}"]
    arguments += [f"--iteration={iteration}"] if iteration is not None else []
    run_inference(job, [*arguments, *(["--json"] if as_json else [])], reads_input=interactive)


def _options(**given: Any) -> dict[str, Any]:
    """The options that were given. Raises UserError for what is wrong with them."""
    options = {name: value for name, value in given.items() if value is not None}
    options_of(options)
    return options


@dataclass(frozen=True)
class _Prompts:
    """What is continued: one of a text, the lines of a file and those of standard input."""

    text: str | None
    file: Path | None
    interactive: bool
    images: Sequence[Path]
    batch_size: int
    """Prompts of the file at a time."""

    def check_named(self, *, tells_probabilities: bool, as_json: bool) -> None:
        """Raises UserError where they are not one of the three, or something goes with another of them."""
        if sum((self.text is not None, self.file is not None, self.interactive)) != 1:
            raise UserError(
                "name what to continue: --prompt TEXT, --file PROMPTS.jsonl or --interactive, one of them",
                code="no_prompt",
            )
        if tells_probabilities and self.file is None and not (as_json and self.text is not None):
            raise UserError(
                "--log-probabilities needs --json or --file: plain text does not have them",
                code="option_without_effect",
            )
        if self.file is not None and self.images:
            raise UserError(
                '--image is for --prompt and --interactive; in a file each line has its own: "images": ["cat.jpg"]',
                code="option_without_effect",
            )

    def check(self, options: Mapping[str, Any], *, sees: bool) -> None:
        """What is wrong with prompts is said before anything is started."""
        if self.file is not None:
            read_prompts(self.file, options, sees=sees)
        check_files(self.images)
        marks = self.text.count(MARK) if self.text is not None else len(self.images)
        if problem := marks_problem(marks, len(self.images), sees=sees, given_by="--image FILE"):
            raise UserError(f"the prompt {problem}", code="malformed_prompt")

    def arguments(self) -> list[str]:
        """For the program: `--name=value`, so that a prompt that starts with a dash stays a prompt."""
        return [
            *([f"--prompt={self.text}"] if self.text is not None else []),
            *([f"--file={self.file.absolute()}", f"--batch-size={self.batch_size}"] if self.file is not None else []),
            *(["--interactive"] if self.interactive else []),
            *(f"--image={path.absolute()}" for path in self.images),
        ]


def layout_arguments(tp: int | None, pp: int | None) -> list[str]:
    """How the program is told of another layout than the job's."""
    given = {"--tensor-model-parallel-size": tp, "--pipeline-model-parallel-size": pp}
    return [f"{name}={size}" for name, size in given.items() if size is not None]


def draft_arguments(num_speculative_tokens: int) -> list[str]:
    """How the program is told of layers that draft tokens."""
    return [f"--num-speculative-tokens={num_speculative_tokens}"] if num_speculative_tokens else []


def at_degrees(job: JobSpec, tp: int | None, pp: int | None) -> JobSpec:
    """The job with as many processes as it is run on here. Raises UserError when its network cannot be split so."""
    own = job.parallelism
    return at_layout(job, tp or own.tensor_model_parallel_size, pp or own.pipeline_model_parallel_size)


def check_family(weights: Weights) -> None:
    """Raises UserError when the model does not continue texts."""
    if (reason := weights.job.model.family.no_generation) is not None:
        raise UserError(f"{weights.label} holds {reason}", code="model_cannot_generate")


def run_inference(
    job: JobSpec,
    arguments: list[str],
    module: str = INFERENCE_MODULE,
    what: str = "generation",
    *,
    reads_input: bool = False,
    shows_all: bool = False,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a program on one replica's processes; its standard output is ours, its input if it reads any. Its warnings
    are passed on as they come; with `shows_all` all that it says, but for words of torchrun. `env`: its variables.

    Raises UserError or JobError with what it says when it fails.
    """
    command, environment = _starting(job, module, arguments, {**os.environ, **(env or {})})
    launch_id = f"{what}-{uuid.uuid4().hex[:8]}"
    process = subprocess.Popen(
        # Tied to this process: one that is killed, and cannot end them, leaves no ranks behind.
        tied(*command),
        stdin=None if reads_input else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**environment, LAUNCH_VARIABLE: launch_id},
    )
    assert process.stderr is not None
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    reader = threading.Thread(target=pass_on, args=(process.stderr, kept, shows_all), daemon=True)
    reader.start()
    try:
        process.wait()
    except BaseException:
        end_processes(launch_id)
        process.wait()
        raise
    finally:
        reader.join()
        process.stderr.close()
    if process.returncode:
        raise failure("".join(kept), what, process.returncode)


def _starting(
    job: JobSpec, module: str, arguments: list[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command that starts a program on one replica's processes, and its environment. One process starts without
    torchrun, which would first take two seconds to import torch for itself.
    """
    degrees = job.parallelism
    processes = degrees.tensor_model_parallel_size * degrees.pipeline_model_parallel_size
    python = job.launch.python or sys.executable
    if processes == 1 and job.launch.template is None:
        refuse_missing_python(job)
        # Where others would be met is said by a launcher around this command: not for this process.
        own = {name: value for name, value in environment.items() if name != "MASTER_ADDR"}
        return module_command(module, *arguments, python=python), {
            **own,
            **_ALONE,
            **dict(script_environment(job, processes)),
        }
    script = render_program(job, python=python, module=module, arguments=arguments, processes_per_node=processes)
    return ["bash", "-c", script], dict(environment)


def pass_on(lines: Iterable[str], kept: deque[str], shows_all: bool) -> None:
    """Show warnings as they come, or all lines before torchrun's report of a failure but for the error, which is told
    at the end. All are read, and the last ones kept: a program must not wait for who reads."""
    goes_on = True
    for line in lines:
        kept.append(line)
        goes_on = goes_on and (not shows_all or before_the_report(line) == line)
        wanted = shows_all and not line.startswith("error: ") and _TORCHRUN.match(line) is None
        if goes_on and (wanted or line.startswith("warning: ")):
            try:
                print(line, end="", file=sys.stderr, flush=True)
            except OSError:  # nobody is there any more to show it to
                goes_on = False


def failure(errors: str, what: str, code: int) -> OrchestratorError:
    """What went wrong, from standard error: of torchrun and its ranks, or of one process, which ended with `code`."""
    own = before_the_report(errors)
    lines = [line for line in own.splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    if said is not None:
        is_ours = UserError.exit_code in (code, *(end.code for end in failed_ranks(errors).values()))
        return UserError(said, code="program_refused") if is_ours else JobError(said, code="program_failed")
    if code < 0:
        return JobError(f"{what} failed: its process was ended by {ended_by(-code)}", code="program_killed")
    return JobError(
        f"{what} failed: {last_exception(own) or (lines[-1] if lines else 'it said nothing')}", code="program_failed"
    )
