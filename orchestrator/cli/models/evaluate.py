"""`orchestrator evaluate`: what a checkpoint is good for, by perplexity and by tasks."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, RunsDir, aligned, end_with, print_json, warn
from orchestrator.cli.models.evaluation_options import Options, asked_of
from orchestrator.cli.models.generate import (
    NumSpeculativeTokens,
    PipelineParallel,
    TensorParallel,
    at_degrees,
    draft_arguments,
    layout_arguments,
    run_inference,
)
from orchestrator.cli.models.weights import Iteration, WeightsName, weights_named
from orchestrator.cli.outputs import refuse_printed
from orchestrator.cli.runs.sync import send
from orchestrator.data.tokenizers.vocabulary import content_hash
from orchestrator.errors import JobError, OrchestratorError, UserError
from orchestrator.launch.start_checks import check_installed
from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed, read_commit
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, checkpoint_digest, dump_asked
from orchestrator.run_directory.results.record import Result, read_result, result_path
from orchestrator.run_directory.rundir import RunDir, default_runs_dir, in_command, nearest_folder
from orchestrator.self_contained_checkpoints import Weights, run_of
from orchestrator.spec.generation import check_drafts
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

EVALUATION_MODULE = "orchestrator.evaluation"


Wikitext = Annotated[
    list[Path] | None,
    typer.Option("--wikitext", metavar="FILE", help="Perplexity by word of WikiText-103's test file, detokenised."),
]
Text = Annotated[list[Path] | None, typer.Option("--text", metavar="FILE", help="Perplexity of a text file.")]
Lambada = Annotated[
    list[Path] | None,
    typer.Option("--lambada", metavar="FILE", help="Predict the last word of passages: JSON lines with `text`."),
]
Mnli = Annotated[
    list[Path] | None,
    typer.Option("--mnli", metavar="FILE", help="Accuracy of a BERT fine-tuned on MNLI: a TSV file of GLUE."),
]
Race = Annotated[
    list[Path] | None,
    typer.Option("--race", metavar="PATH", help="Accuracy of a BERT fine-tuned on RACE: a folder of it, or a file."),
]
LmEval = Annotated[
    list[str] | None,
    typer.Option("--lm-eval", metavar="TASK", help="A task of lm-evaluation-harness: its YAML file, or its name."),
]
Strict = Annotated[
    bool, typer.Option("--strict/--not-strict", help="LAMBADA: the whole last word, or only its last token.")
]
OverlappingEval = Annotated[
    int | None,
    typer.Option(
        "--overlapping-eval",
        min=1,
        help="Tokens from one window of a text to the next; earlier ones are context. A whole window by default.",
    ),
]
SeqLength = Annotated[
    int | None, typer.Option("--seq-length", min=1, help="Tokens per window; as in training by default.")
]
AddBos = Annotated[bool, typer.Option("--add-bos", help="Begin each sequence with the tokenizer's first token.")]
IncludePath = Annotated[
    list[Path] | None,
    typer.Option("--include-path", metavar="DIR", help="lm-eval: a folder in which task names are looked up."),
]
NumFewshot = Annotated[int | None, typer.Option("--num-fewshot", min=0, help="lm-eval: examples before each question.")]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Full sequences computed at once; micro_batch_size by default."),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Folder of the results; the run's by default.", callback=refuse_printed
    ),
]


def command(
    which: WeightsName,
    wikitext: Wikitext = None,
    text: Text = None,
    lambada: Lambada = None,
    mnli: Mnli = None,
    race: Race = None,
    lm_eval: LmEval = None,
    iteration: Iteration = None,
    strict: Strict = True,
    overlapping_eval: OverlappingEval = None,
    seq_length: SeqLength = None,
    add_bos: AddBos = False,
    include_path: IncludePath = None,
    num_fewshot: NumFewshot = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="lm-eval: only the first N documents.")] = None,
    batch_size: BatchSize = None,
    tensor_model_parallel_size: TensorParallel = None,
    pipeline_model_parallel_size: PipelineParallel = None,
    num_speculative_tokens: NumSpeculativeTokens = 0,
    output: Output = None,
    again: Annotated[bool, typer.Option("--again", help="Evaluate again, even if a result is stored.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint: perplexity, LAMBADA, MNLI, RACE, and any task of lm-evaluation-harness, from local
    files. Results are stored in the run directory and sent to MLflow. An interrupted evaluation continues where it
    stopped.

    \b
    Example:
      orchestrator evaluate gpt-small --wikitext wiki.test.tokens --lambada lambada_test.jsonl
      orchestrator evaluate gpt-small --text book.txt --overlapping-eval 32 --iteration 500
      orchestrator evaluate bert-mnli --mnli dev_matched.tsv --mnli dev_mismatched.tsv
      orchestrator evaluate gpt-small --lm-eval my_task.yaml --num-fewshot 2
    """
    weights = weights_named(which, iteration, runs_dir or default_runs_dir())
    options = Options(
        files={
            "wikitext": wikitext or [],
            "text": text or [],
            "lambada": lambada or [],
            "mnli": mnli or [],
            "race": race or [],
        },
        harness=lm_eval or [],
        strict=strict,
        seq_length=seq_length,
        overlapping_eval=overlapping_eval,
        add_bos=add_bos,
        include_path=include_path or [],
        num_fewshot=num_fewshot,
        limit=limit,
    )
    job = at_degrees(weights.job, tensor_model_parallel_size, pipeline_model_parallel_size)
    asked = asked_of(options, weights.job, weights.label)
    check_drafts(weights.job.model, num_speculative_tokens, weights.label)
    if num_speculative_tokens and not options.harness:
        raise UserError(
            "--num-speculative-tokens has no effect without --lm-eval: nothing else generates text",
            code="option_without_effect",
        )
    arguments = layout_arguments(tensor_model_parallel_size, pipeline_model_parallel_size)
    arguments += draft_arguments(num_speculative_tokens)
    arguments += [f"--batch-size={batch_size or weights.job.batch.micro_batch_size}"]
    _evaluate(weights, iteration, job, asked, arguments, output, again=again, as_json=as_json)


def _evaluate(
    weights: Weights,
    iteration: int | None,
    job: JobSpec,
    asked: Sequence[EvaluationRequest],
    arguments: list[str],
    output: Path | None,
    *,
    again: bool,
    as_json: bool,
) -> None:
    """Measure what was not measured before, and tell all that was asked for. `job`: as it is computed; `arguments` of
    the program that say how.
    """
    run = weights.run or run_of(weights.path)
    folder = (output or (run.evaluations if run is not None else Path("evaluations"))).absolute()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder} is not a folder", code="not_a_folder")
    commit = _commit(weights, iteration)
    known = [] if again else _known(asked, commit, weights.job, folder)
    if known and not as_json:
        warn(f"measured before, and shown again: {', '.join(result.name for result in known)} (--again measures anew)")
    error: OrchestratorError | None = None
    missing = [one for one in asked if one.name not in {result.name for result in known}]
    if missing:
        _check_writable(folder)
        check_installed(weights.job)
        if known and weights.run is not None:
            iteration = commit.iteration  # what is measured now belongs to the same one, whatever is newest by then
        arguments = [str(weights.path), f"--output={folder}", *arguments]
        arguments += [f"--iteration={iteration}"] if iteration is not None else []
        arguments += [*(["--again"] if again else []), *(["--quiet"] if as_json else [])]
        found, error = _measured(job, missing, arguments)
        known += found
        if error is not None and not known:
            raise error
    order = [one.name for one in asked]
    results = sorted(known, key=lambda result: order.index(result.name))
    if as_json:
        print_json([result.to_json() for result in results])
    else:
        typer.echo(f"{weights.label}\n{table(results)}")
    if missing and run is not None and output is None:
        _send_on(run)
    end_with(error)


def _check_writable(folder: Path) -> None:
    """Raises UserError where the results could not be kept: before minutes go into them."""
    nearest = nearest_folder(folder)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(
            f"nothing can be written in {nearest}, where the results go: name another folder with --output",
            code="unwritable_folder",
        )


def _commit(weights: Weights, iteration: int | None) -> Commit:
    """The checkpoint that is meant; of a run the latest one where no iteration is given."""
    if weights.run is None:
        commit = read_commit(weights.path)
        assert commit is not None, "who named it has looked"
        return commit
    return [commit for commit in committed(weights.run) if iteration in (None, commit.iteration)][-1]


def _known(asked: Sequence[EvaluationRequest], commit: Commit, job: JobSpec, folder: Path) -> list[Result]:
    """What was measured before of a checkpoint."""
    checkpoint, tokenizer = checkpoint_digest(commit.files), content_hash(job.data.tokenizer)
    found = []
    for one in asked:
        if not one.files:  # only lm-eval knows what is in its tasks
            continue
        key = one.key(checkpoint, tokenizer)
        result = read_result(result_path(folder, commit.iteration, one.name, key))
        if result is not None and result.key == key:
            found.append(result)
    return found


def _measured(
    job: JobSpec, asked: Sequence[EvaluationRequest], arguments: list[str]
) -> tuple[list[Result], OrchestratorError | None]:
    """The results of the program, and its error, if any: then the results are those of the tasks before."""
    error: OrchestratorError | None = None
    with tempfile.TemporaryDirectory(prefix="orchestrator-evaluate-") as folder:
        summary = Path(folder, "results.json")
        arguments = [*arguments, f"--asked={dump_asked(asked)}", f"--summary={summary}"]
        try:
            run_inference(job, arguments, EVALUATION_MODULE, "evaluation")
        except OrchestratorError as failure:
            error = failure
        paths = [Path(path) for path in json.loads(summary.read_bytes())] if summary.exists() else []
    found = [(path, read_result(path)) for path in paths]
    for path, result in found:
        if result is None:
            error = error or JobError(f"{path} cannot be read any more", code="unreadable_file")
    return [result for _, result in found if result is not None], error


def _send_on(run: RunDir) -> None:
    """Send what is new, where the run is tracked; the results are kept here anyhow."""
    tracking = load_resolved(run.resolved()).tracking
    if not tracking.plugins and all(importlib.util.find_spec(name) is None for name in tracking.trackers):
        return
    later = f"later: orchestrator sync {in_command(run)}"
    try:
        for record in send([run]):
            if record["state"] == "failed":
                warn(f"not sent: {record['message']}; {later}")
    except JobError as error:
        warn(f"{error}; {later}")


def table(results: Sequence[Result]) -> str:
    """The results for a person."""
    rows = [["TASK", "ITERATION", "METRIC", "VALUE", "STDERR", "OF"]]
    for result in results:
        counts = ", ".join(f"{count:,} {name}" for name, count in result.counts.items())
        first = [result.name, str(result.iteration)]
        for name, measure in result.metrics.items():
            stderr = "-" if measure.stderr is None else f"{measure.stderr:.4g}"
            rows.append([*first, name, f"{measure.value:.6g}", stderr, counts])
            first, counts = ["", ""], ""
    return aligned(rows)
