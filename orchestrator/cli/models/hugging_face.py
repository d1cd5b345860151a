"""`orchestrator checkpoint export` and `checkpoint import`: checkpoints out to Hugging Face's layout and in from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml
from pydantic import ValidationError

from orchestrator.api.starts.run_sentences import label
from orchestrator.cli.common import AsJson, RunsDir, print_json, warn
from orchestrator.cli.models.conversion import alone, convert, size_of, spec_around
from orchestrator.cli.models.megatron import check_exported, export_megatron, import_megatron, is_megatron
from orchestrator.cli.models.weights import Iteration, WeightsName, tell_new_meaning, weights_named, whole_checkpoint
from orchestrator.cli.outputs import refuse_printed
from orchestrator.conversion.hugging_face.config_json import (
    import_notes,
    in_their_words,
    read_config,
    to_dtype,
    to_model,
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.further_tokens import layers_of_further_tokens
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.families.registry import family_of_job
from orchestrator.conversion.hugging_face.images.processor_values import (
    image_token_note,
    refuse_other_pixels,
)
from orchestrator.conversion.weight_mapping import Family
from orchestrator.errors import SpecError, UserError
from orchestrator.launch.runs import create_run
from orchestrator.launch.start_checks import check_conversion
from orchestrator.run_directory.events.types import Imported
from orchestrator.run_directory.rundir import RunDir, default_runs_dir, write_atomically
from orchestrator.self_contained_checkpoints import Weights, job_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_text
from orchestrator.spec.messages.validation import errors_in_words
from orchestrator.spec.vision import VisionSpec

_SHOWN = 4
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


Folder = Annotated[Path | None, typer.Argument(metavar="DIR", help="The same as --output DIR.", show_default=False)]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder to write; it must not exist.",
        callback=refuse_printed,
        show_default=False,
    ),
]
MaxShardSize = Annotated[
    str | None, typer.Option("--max-shard-size", metavar="SIZE", help="hf: largest file, like 200MB; 5GB by default.")
]
Dtype = Annotated[
    Literal["bf16", "fp16", "fp32"] | None,
    typer.Option("--dtype", help="hf: dtype of the weights; as stored by default."),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        metavar="BASE",
        help="hf: only the adapters (model.lora), for PEFT. BASE is the folder or name of the model that they were "
        "trained on. By default they are merged into the weights.",
        show_default=False,
    ),
]


def export(
    which: WeightsName,
    to: Annotated[Literal["hf", "megatron-lm"], typer.Option("--to", help="Format to write.")],
    folder: Folder = None,
    output: Output = None,
    max_shard_size: MaxShardSize = None,
    dtype: Dtype = None,
    no_tokenizer: Annotated[bool, typer.Option("--no-tokenizer", help="hf: leave out the tokenizer's files.")] = False,
    adapter: Adapter = None,
    iteration: Iteration = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as the folder of a Hugging Face model (GPT-2, Llama, Mistral, Mixtral, Qwen 2 and 3, Gemma,
    Phi, StarCoder 2, StableLM, BERT, T5, LLaVA), or for Megatron-LM with its optimizer (GPT, BERT, T5). Low-rank
    adapters are merged into the weights, or exported alone.

    \b
    Example:
      orchestrator checkpoint export gpt-small --to hf --max-shard-size 200MB --dtype bf16 -o my-model
      orchestrator checkpoint export llama-tuned --to hf --adapter meta-llama/Llama-3.2-1B -o my-adapter
      orchestrator checkpoint export gpt-small --to megatron-lm -o for-megatron
    """
    target = _target(folder, output)
    most_bytes = _size(max_shard_size or "5GB")
    weights = weights_named(which, iteration, runs_dir or default_runs_dir())
    if to == "megatron-lm":
        if max_shard_size or dtype or no_tokenizer or adapter is not None:
            raise UserError(
                "--max-shard-size, --dtype, --no-tokenizer and --adapter go with --to hf", code="option_without_effect"
            )
        check_exported(weights)
        export_megatron(weights, whole_checkpoint(weights, iteration), target, as_json=as_json)
        return
    job = weights.job
    if adapter is not None and (max_shard_size or no_tokenizer):
        raise UserError(
            "--max-shard-size and --no-tokenizer go with a whole model, not with --adapter",
            code="option_without_effect",
        )
    try:
        family_of_job(job)
    except UserError as error:
        raise UserError(f"{error}{_other_layout(weights)}", code=error.code) from error
    checkpoint = whole_checkpoint(weights, iteration, contents=False)
    check_conversion(job)
    options = [f"--most-bytes={most_bytes}", *([f"--dtype={dtype}"] if dtype else [])]
    if no_tokenizer:
        options.append("--tokenizer=no")
    if adapter is not None:
        options.append(f"--adapter={Path(adapter).absolute() if Path(adapter).is_dir() else adapter}")
    done = convert("export", str(checkpoint), str(target), *options)
    if left_out := done.pop("tokenizer_left_out"):
        warn(f"{left_out}: none is written")
    if as_json:
        print_json({**done, "checkpoint": str(checkpoint)})
    else:
        typer.echo(f"wrote {checkpoint} as {done['family']} to {target}: {done['files']} files, {size_of(done)}")


def _target(folder: Path | None, output: Path | None) -> Path:
    """The folder to write, which is named in one of two ways. Raises UserError."""
    if folder is not None and output is not None:
        raise UserError(
            f"{folder} and --output {output}: name the folder to write once, with -o DIR", code="conflicting_outputs"
        )
    named = output or folder
    if named is None:
        raise UserError("no folder to write is named: add -o DIR", code="no_output")
    return named.absolute()


def _other_layout(weights: Weights) -> str:
    """The way out where transformers has no such network and Megatron-LM has."""
    try:
        check_exported(weights)
    except UserError:
        return ""
    return "\n      Megatron-LM's own layout takes it: --to megatron-lm"


FolderOption = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of a Hugging Face model, or of Megatron-LM's checkpoints.")
]
From = Annotated[
    Literal["hf", "megatron-lm"] | None,
    typer.Option("--from", help="Format of the folder; detected by default.", show_default=False),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run; the folder's name by default.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="JOB.yaml",
        help="Write a job here that starts from the imported weights.",
        callback=refuse_printed,
    ),
]
JobFile = Annotated[
    Path | None,
    typer.Option("--job", metavar="JOB.yaml", help="megatron-lm: the job that continues from it, with its optimizer."),
]
IterationOption = Annotated[
    int | None, typer.Option("--iteration", min=0, help="megatron-lm: which checkpoint; the latest by default.")
]

MultiTokenPrediction = Annotated[
    bool, typer.Option("--mtp", help="hf: also import the layers of multi-token prediction, which are left out else.")
]


def import_(
    folder: FolderOption,
    from_: From = None,
    name: Name = None,
    output: OutputOption = None,
    job_file: JobFile = None,
    iteration: IterationOption = None,
    mtp: MultiTokenPrediction = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Import a Hugging Face model or a Megatron-LM checkpoint as a run, with its weights as the checkpoint of iteration
    0. With --job, a Megatron-LM checkpoint keeps its iteration and its optimizer.

    \b
    Example:
      orchestrator checkpoint import Llama-3.2-1B --name llama -o finetune.yaml
      orchestrator checkpoint import megatron/checkpoints --from megatron-lm --job job.yaml
    """
    source = folder.absolute()
    if not source.exists():
        raise UserError(f"{source} does not exist", code="file_not_found")
    runs = (runs_dir or default_runs_dir()).absolute()
    if from_ == "megatron-lm" or (from_ is None and is_megatron(source)):
        if mtp:
            raise UserError("--mtp goes with --from hf", code="option_without_effect")
        if output is not None:
            raise UserError(
                "--output goes with --from hf: of Megatron-LM's checkpoints, --job names the job",
                code="option_without_effect",
            )
        import_megatron(source, name=name, job_file=job_file, iteration=iteration, runs=runs, as_json=as_json)
        return
    if job_file is not None or iteration is not None:
        raise UserError("--job and --iteration go with --from megatron-lm", code="option_without_effect")
    _import_from_hugging_face(source, name, output, runs, mtp=mtp, as_json=as_json)


def _import_from_hugging_face(
    source: Path, name: str | None, output: Path | None, runs: Path, *, mtp: bool, as_json: bool
) -> None:
    """`output`: where to write a job that goes on from the weights."""
    config = read_config(source)
    family = family_of_folder(source)
    if output is not None:
        _require_free(output)
    written = _document(name or _as_name(source.name), config, family, source)
    if mtp:
        written["model"]["mtp_num_layers"] = layers_of_further_tokens(config, family)
    text = yaml.safe_dump(written, sort_keys=False)
    try:
        job = load_text(text, f"the job made of {source / 'config.json'}").job
    except SpecError as error:
        raise in_their_words(error, config, family) from error
    check_conversion(job)
    draft = RunDir(runs / job.name / f".import-{job.config_hash[:8]}")
    with alone(draft.path, f"another process is importing {source} as {job.name} now; wait for it"):
        write_atomically(draft.path / "resolved.json", dump_resolved(job))
        done = convert("import", str(source), str(draft.path / "resolved.json"), str(draft.checkpoint(0)))
        run = create_run(job, text, runs)
        run.append(Imported(source=str(source), family=done["family"]))
        draft.checkpoints.rename(run.checkpoints)
    if left_out := done["left_out"]:
        more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        warn(f"unused weights are left out: {', '.join(left_out[:_SHOWN])}{more}")
    if output is not None:
        write_atomically(output, _continuing_job(written, job, run))
    if as_json:
        print_json({**done, "path": str(run.checkpoint(0)), "run_id": run.run_id, "run": str(run.path)})
    else:
        typer.echo(f"imported {source} ({done['family']}) as run {label(run)}: {size_of(done)}")
        tell_new_meaning(run, runs)


def _continuing_job(imported: dict[str, Any], job: JobSpec, run: RunDir) -> str:
    """A job that goes on from the imported weights of a run, as YAML. `imported`: the run's own, as it is written."""
    start = {**imported, "name": f"{job.name}-tuned", "checkpoint": {"pretrained": str(run.path)}}
    if "tokenizer" in start["data"]:  # the checkpoint's own, so that the folder need not stay
        own = job_of(run.checkpoint(0)).data.tokenizer
        start["data"] = {**start["data"], "tokenizer": own.model_dump(exclude_defaults=True)}
    return _note(job) + yaml.safe_dump(start, sort_keys=False)


def _note(job: JobSpec) -> str:
    """What stands above a job that starts from it: random tokens take neither a blend nor conversations."""
    if not job.model.has_vision:
        return "# Starts from the imported weights. Replace random_tokens by the blend to train on.\n"
    return (
        "# Starts from the imported weights. Replace random_tokens by the conversations to train on, in data:\n"
        "#   blend: [{path: data/talks, text: talks/train.jsonl}]\n"
        "#   chat: {packing: false}\n"
    )


def _require_free(output: Path) -> None:
    """Before the work and not after it. Raises UserError."""
    if output.exists():
        raise UserError(f"{output} exists already", code="output_exists")
    if not output.absolute().parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.absolute().parent}", code="missing_output_folder")


def _document(name: str, config: dict[str, Any], family: Family, source: Path) -> dict[str, Any]:
    """A job with the network, the format and the tokenizer of a folder."""
    tokenizer = _tokenizer(source)
    if tokenizer is None:
        warn(
            f"{source} has no tokenizer.json, tokenizer.model, vocab.txt or vocab.json with merges.txt: "
            "name a tokenizer yourself"
        )
    model = to_model(config, family)
    for message in import_notes(config, family):
        warn(message)
    if "vision" in model:
        try:
            vision = VisionSpec.model_validate(model["vision"])
        except ValidationError as error:
            raise UserError(f"config.json: {errors_in_words(error)}", code="unsupported_config_value") from error
        refuse_other_pixels(source, vision)
        if note := image_token_note(source, config, vision.kind.token):
            warn(note)
    return spec_around(name, model, to_dtype(config), tokenizer)


def _tokenizer(folder: Path) -> dict[str, str] | None:
    if (folder / "tokenizer.json").is_file():
        return {"type": "huggingface", "path": str(folder / "tokenizer.json")}
    for name in ("tokenizer.model", "spiece.model"):
        if (folder / name).is_file():
            return {"type": "sentencepiece", "path": str(folder / name)}
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return {"type": "gpt2_bpe", "path": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    if (folder / "vocab.txt").is_file():
        return {"type": "wordpiece", "path": str(folder / "vocab.txt")}
    return None


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.") or "imported"


def _size(text: str) -> int:
    """Bytes of a size as people write it. Raises UserError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[(match[2] or "").upper()]) if match else 0
    if size < 1:
        raise UserError(
            f"--max-shard-size {text} is not a size: write it like 200MB, 5GB or 1GiB", code="malformed_size"
        )
    return size
