"""`orchestrator checkpoint reshape`: a checkpoint written anew for another layout, with a verdict first."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.api.starts.run_sentences import label
from orchestrator.api.starts.spec_changes import refuse_unconfirmed
from orchestrator.cli.common import AsJson, Overrides, RunsDir, aligned, print_json
from orchestrator.cli.models.conversion import alone, convert
from orchestrator.cli.models.weights import Iteration, WeightsName, tell_new_meaning, weights_named, whole_checkpoint
from orchestrator.cli.outputs import refuse_printed
from orchestrator.data.tokenizers.copies import carried
from orchestrator.data.tokenizers.vocabulary import content_hash
from orchestrator.errors import UserError
from orchestrator.launch.runs import add_generation, create_run
from orchestrator.launch.start_checks import check_conversion
from orchestrator.planning.layout.reshaping import Finding, judge_reshape
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.types import Reshaped
from orchestrator.run_directory.rundir import RunDir, default_runs_dir, in_command, sync_folder, write_atomically
from orchestrator.self_contained_checkpoints import TOKENIZER_FOLDER, Weights, left_behind, spec_to_go_on_with
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, dump_resolved, load_job, load_text
from orchestrator.spec.schema.diff import Change

_FIELDS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
_BATCH = "batch."


def _degree(name: str, what: str) -> Any:
    return typer.Option(f"--{name}", min=1, metavar="N", help=f"{what}; unchanged by default.", show_default=False)


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Write only the checkpoint, to this folder, instead of a new run.",
        callback=refuse_printed,
    ),
]
To = Annotated[Path | None, typer.Option("--to", metavar="JOB.yaml", help="Job that continues from it.")]
AllowChanges = Annotated[
    bool, typer.Option("--allow-changes", help="Accept changes that alter the course of the training.")
]


def reshape(
    which: WeightsName,
    output: Output = None,
    to: To = None,
    tp: Annotated[int | None, _degree("tp", "Tensor-parallel size")] = None,
    pp: Annotated[int | None, _degree("pp", "Pipeline-parallel size")] = None,
    vp: Annotated[int | None, _degree("vp", "Model chunks per pipeline rank; 1 for none")] = None,
    cp: Annotated[int | None, _degree("cp", "Context-parallel size")] = None,
    dp: Annotated[int | None, _degree("dp", "Data-parallel size")] = None,
    ep: Annotated[int | None, _degree("ep", "Expert-parallel size")] = None,
    etp: Annotated[int | None, _degree("etp", "Tensor-parallel size of experts")] = None,
    overrides: Overrides = None,
    iteration: Iteration = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the effect.")] = False,
    allow_changes: AllowChanges = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite a checkpoint for another layout, with its optimizer: as a run that `resume` continues, or alone.

    \b
    Example:
      orchestrator checkpoint reshape gpt-small --tp 4 --pp 1 --dp 2 --dry-run
      orchestrator checkpoint reshape runs/gpt-small/3f9a12cd/checkpoints/iter_0000500 --tp 1 -o gpt-small-tp1
    """
    runs = (runs_dir or default_runs_dir()).absolute()
    weights = weights_named(which, iteration, runs)
    degrees = {"tp": tp, "pp": pp, "vp": vp, "cp": cp, "dp": dp, "ep": ep, "etp": etp}
    old = spec_to_go_on_with(weights)
    new = job_at(old, to, [*_asked(degrees, to), *(overrides or [])], weights)
    check_conversion(new.job)
    if output is not None and output.exists():
        raise UserError(f"{output} already exists: name another folder", code="output_exists")
    checkpoint = _newest(weights, iteration) if dry_run else whole_checkpoint(weights, iteration)
    inspected = convert("inspect", str(checkpoint))
    same = _same_tokenizer(weights.job, new.job)
    facts = inspected["optimizer"], inspected["vocabulary_rows"]
    findings = judge_reshape(old, new.job, *facts, same_tokenizer=same)
    left = left_behind(weights, new.job) if to is None else []
    if not as_json:
        _tell_findings(checkpoint, findings, left)
    _refuse(findings, allow_changes)
    answer: dict[str, Any] = {"checkpoint": str(checkpoint), "findings": [asdict(finding) for finding in findings]}
    answer["left_behind"] = {change.path: change.old for change in left}
    if dry_run:
        if as_json:
            print_json(answer)
        return
    if output is not None:
        answer |= write_checkpoint(checkpoint, new.job, output.absolute())
    else:
        run = write_run(checkpoint, new, runs)
        answer |= {"path": str(committed(run)[-1].path), "run_id": run.run_id, "run": str(run.path)}
    if as_json:
        print_json(answer)
    elif output is not None:
        typer.echo(f"wrote {output}")
    else:
        typer.echo(f"wrote run {label(run)} in {run.path}: continue with `orchestrator resume {in_command(run)}`")
        tell_new_meaning(run, runs)


def _asked(degrees: dict[str, int | None], to: Path | None) -> list[str]:
    """The degrees, as `--set` takes them."""
    asked = [
        f"parallelism.{_FIELDS[name]}={_written(name, size)}" for name, size in degrees.items() if size is not None
    ]
    if degrees["dp"] is not None and to is None:  # what the launch section says of processes would stand against it
        asked += ["launch.nodes=1", "launch.gpus_per_node=null"]
    return asked


def _written(name: str, size: int) -> str:
    return "null" if name == "vp" and size == 1 else str(size)


def job_at(old: JobSpec, to: Path | None, overrides: list[str], weights: Weights) -> LoadedJob:
    """The job to go on as. Where the global batch followed from a number of micro-batches, and would be another at the
    new layout, it is kept, and they follow. Raises SpecError when its layout is not legal.
    """
    if to is not None:
        return load_job([to], overrides)
    spec, origin = dump_resolved(old), f"the spec of {weights.label}"
    new = load_text(spec, origin, overrides)
    if new.job.global_batch_size == old.global_batch_size or any(each.startswith(_BATCH) for each in overrides):
        return new
    kept = f"batch.global_batch_size={old.global_batch_size}"
    return load_text(spec, origin, ["batch.num_micro_batches=null", kept, *overrides])


def _same_tokenizer(old: JobSpec, new: JobSpec) -> bool:
    """Whether both have the same files, as far as they are on this machine."""
    try:
        return content_hash(old.data.tokenizer) == content_hash(new.data.tokenizer)
    except UserError:
        return False


def _newest(weights: Weights, iteration: int | None) -> Path:
    """The checkpoint that would be read, whole or not."""
    if weights.run is None:
        return weights.path
    return committed(weights.run)[-1].path if iteration is None else weights.run.checkpoint(iteration)


def _row(finding: Finding) -> list[str]:
    before, after = ("-" if value is None else str(value) for value in (finding.before, finding.after))
    return [finding.what, before, after, finding.verdict, finding.reason]


def _tell_findings(checkpoint: Path, findings: list[Finding], left: list[Change]) -> None:
    typer.echo(f"{checkpoint}:")
    typer.echo(aligned([["WHAT", "THERE", "HERE", "VERDICT", "WHY"], *(_row(finding) for finding in findings)]))
    _tell_left_behind(left)


def _tell_left_behind(left: list[Change]) -> None:
    """Say what a checkpoint alone does not bring along."""
    if not left:
        return
    typer.echo("not taken from a checkpoint named by its folder (set it with --set or --to):")
    for change in left:
        before, after = ("-" if value is None else value for value in (change.old, change.new))
        typer.echo(f"  {change.path}: {before} -> {after}")


def _refuse(findings: list[Finding], allow_changes: bool) -> None:
    """Raises UserError when something is impossible, or alters the course and was not allowed."""
    impossible = [f"{finding.what}: {finding.reason}" for finding in findings if finding.verdict == "impossible"]
    if impossible:
        raise UserError(
            "this checkpoint cannot continue like this:\n      " + "\n      ".join(impossible),
            code="continuation_not_possible",
        )
    changing = [finding.what for finding in findings if finding.verdict == "changes"]
    if not allow_changes:
        refuse_unconfirmed("nothing was written", changing)


def write_checkpoint(checkpoint: Path, job: JobSpec, target: Path) -> dict[str, Any]:
    """Write the checkpoint `target`, which appears when it is whole."""
    draft = target.with_name(f".{target.name}.reshape")
    with alone(draft, f"another process is writing {target} now; wait for it, or name another folder"):
        if target.exists():  # since it was looked for
            raise UserError(f"{target} already exists: name another folder", code="output_exists")
        done = _convert(checkpoint, job, draft)
        (draft / "checkpoint").rename(target)
        sync_folder(target.parent)
    return {**done, "path": str(target)}


def _convert(checkpoint: Path, job: JobSpec, draft: Path) -> dict[str, Any]:
    """Write the folder `checkpoint` of a draft."""
    write_atomically(draft / "resolved.json", dump_resolved(job))
    return convert("reshape", str(checkpoint), str(draft / "resolved.json"), str(draft / "checkpoint"))


def write_run(checkpoint: Path, new: LoadedJob, runs: Path) -> RunDir:
    """A new run that has the checkpoint, and a tokenizer of its own where the job's is not on this machine."""
    job = new.job
    draft = RunDir(runs / job.name / f".reshape-{job.config_hash[:8]}")
    with alone(draft.path, f"another process is reshaping a checkpoint for {job.name} now; wait for it"):
        done = _convert(checkpoint, job, draft.path)
        run = create_run(job, new.text, runs)
        run.append(Reshaped(source=str(checkpoint), iteration=done["iteration"]))
        run.checkpoints.mkdir()
        target = run.checkpoint(done["iteration"])
        (draft.path / "checkpoint").rename(target)
        sync_folder(run.checkpoints)
    path = job.data.tokenizer.path
    if path is not None and not Path(path).exists() and (target / TOKENIZER_FOLDER).is_dir():
        own = Path(shutil.copytree(target / TOKENIZER_FOLDER, run.path / TOKENIZER_FOLDER))
        tokenizer = carried(job.data.tokenizer, own, [file.name for file in own.iterdir()])
        add_generation(run, job.changed(data={"tokenizer": tokenizer}), new.text)
    return run
