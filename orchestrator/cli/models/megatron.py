"""Checkpoints out to Megatron-LM (`checkpoint export --to`) and in from it (`checkpoint import --from`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
import yaml

from orchestrator.api.starts.run_sentences import label
from orchestrator.cli.common import print_json, warn
from orchestrator.cli.models.conversion import alone, convert, size_of, spec_around
from orchestrator.cli.models.weights import tell_new_meaning
from orchestrator.conversion.megatron.arguments import (
    NULL_TOKENIZER,
    differences,
    require_layers,
    require_representable,
    to_model,
)
from orchestrator.conversion.megatron.bert_and_t5 import family_of
from orchestrator.conversion.megatron.checkpoint_keys import find_sources, unread, wanted_tensors
from orchestrator.conversion.megatron.torch_format.names import RANK_FOLDERS, WHOLE, is_of_ranks
from orchestrator.data.tokenizers.vocabulary import vocabulary_size
from orchestrator.errors import UserError
from orchestrator.launch.runs import create_run
from orchestrator.launch.start_checks import check_conversion
from orchestrator.models.blocks.flags import number_of
from orchestrator.models.registry import GPT
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import MEGATRON_TRACKER, committed
from orchestrator.run_directory.events.types import Imported
from orchestrator.run_directory.rundir import RunDir, in_command, sync_folder, write_atomically
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, dump_resolved, load_job, load_text
from orchestrator.spec.sections.data import TokenizerSpec

_RESHARDABLE = ("fully_reshardable",)
_SAVED_ONCE_MORE = ("dp_reshardable", "dp_zero_gather_scatter", "fully_sharded_model_space")
"""What Megatron-LM loads and then saves in the other format."""
_OPTIMIZER = ("optimizer.", "chained_")
_SHOWN = 4


def is_megatron(folder: Path) -> bool:
    """Whether a folder is one that Megatron-LM saves into, or one checkpoint in it."""
    tracked = (folder / MEGATRON_TRACKER).is_file() or (folder.parent / MEGATRON_TRACKER).is_file()
    return tracked or is_of_ranks(folder)


def export_megatron(weights: Weights, checkpoint: Path, target: Path, *, as_json: bool) -> None:
    """Write a checkpoint as a folder for Megatron-LM's --load."""
    check_conversion(weights.job)
    done = convert("to-megatron", str(checkpoint), str(target))
    if as_json:
        print_json({**done, "checkpoint": str(checkpoint)})
    else:
        typer.echo(f"wrote {checkpoint} for Megatron-LM to {target}: {done['files']} files, {size_of(done)}")


def check_exported(weights: Weights) -> None:
    """Raises UserError when Megatron-LM has no such network."""
    require_representable(weights.job)


def import_megatron(
    folder: Path, *, name: str | None, job_file: Path | None, iteration: int | None, runs: Path, as_json: bool
) -> None:
    """Make a run of a checkpoint: with a job, one that goes on from it; else one that holds its weights.

    Raises UserError when there is none, when it is no GPT's, BERT's or T5's, or the job's network is another.
    """
    source = checkpoint_in(folder, iteration)
    found = convert("describe-megatron", str(source))
    if family_of(found["kinds"]) is None:
        raise UserError(
            f"{source} is no GPT, BERT or T5: it has {', '.join(found['kinds'])}; only these are imported",
            code="unsupported_model_type",
        )
    loaded = job_of(source, found, name, job_file)
    job = loaded.job
    if job.model.has_vision:
        raise UserError(
            f"{source} is a decoder, and {job.name} has images (model.vision): import it without --job",
            code="images_not_in_checkpoint",
        )
    check_weights(source, found, job)
    with_optimizer = job_file is not None and takes_optimizer(source, found, job)
    check_conversion(job)
    draft = RunDir(runs / job.name / f".import-{job.config_hash[:8]}")
    with alone(draft.path, f"another process is importing {source} as {job.name} now; wait for it"):
        write_atomically(draft.path / "resolved.json", dump_resolved(job))
        target = str(draft.path / "checkpoint")
        options = ["--optimizer"] if with_optimizer else []
        done = convert("from-megatron", str(source), str(draft.path / "resolved.json"), target, *options)
        run = create_run(job, loaded.text, runs)
        run.append(Imported(source=str(source), family="Megatron-LM", optimizer=with_optimizer))
        run.checkpoints.mkdir()
        (draft.path / "checkpoint").rename(run.checkpoint(done["iteration"]))
        sync_folder(run.checkpoints)
    if as_json:
        path = committed(run)[-1].path
        print_json({**done, "path": str(path), "run_id": run.run_id, "run": str(run.path), "optimizer": with_optimizer})
        return
    typer.echo(f"imported {source} as run {label(run)}: {size_of(done)}")
    tell_new_meaning(run, runs)
    if with_optimizer:
        typer.echo(f"continue at iteration {done['iteration']} with `orchestrator resume {in_command(run)}`")


def checkpoint_in(folder: Path, iteration: int | None) -> Path:
    """The folder of one checkpoint. Raises UserError when it is not of the kind that is imported."""
    source = folder
    if (folder / MEGATRON_TRACKER).is_file():
        said = (folder / MEGATRON_TRACKER).read_text(errors="replace").strip() if iteration is None else str(iteration)
        if not said.isdecimal() and said != "release":
            raise UserError(
                f"{folder / MEGATRON_TRACKER} does not name an iteration: {said[:40]!r}", code="damaged_tracker"
            )
        source = folder / (said if said == "release" else f"iter_{int(said):07d}")
    elif iteration is not None:
        raise UserError(
            f"{folder} is one checkpoint: --iteration goes with a folder of several, with a {MEGATRON_TRACKER}",
            code="iteration_without_effect",
        )
    if not source.is_dir():
        raise UserError(f"{source} does not exist", code="file_not_found")
    if not is_of_ranks(source) and not (source / ".metadata").is_file():
        raise UserError(
            f"{source} is no checkpoint of Megatron-LM: it has neither .metadata nor {RANK_FOLDERS}",
            code="not_a_megatron_checkpoint",
        )
    return source


def job_of(source: Path, found: Mapping[str, Any], name: str | None, job_file: Path | None) -> LoadedJob:
    """The job that is given, or one made of the checkpoint's arguments, which holds the network alone."""
    arguments, family = found["arguments"], family_of(found["kinds"]) or GPT
    require_layers(arguments or {}, found["tensors"])
    if job_file is not None:
        loaded = load_job([job_file], [f"name={name}"] if name else [])
        other = differences(loaded.job, arguments, family) if arguments is not None else []
        if other:
            raise UserError(f"{source} is not the network of {job_file}: {'; '.join(other)}", code="network_differs")
        return loaded
    if arguments is None:
        why = found["unread"] or f"{source} has no arguments that describe its network"
        raise UserError(
            f"{why}; give the job with --job JOB.yaml to take only the weights", code="checkpoint_not_imported"
        )
    tokenizer = _tokenizer(arguments)
    if tokenizer is None:
        warn(f"the tokenizer of {source} is not on this machine, or of an unsupported kind: name one yourself")
    model = to_model(arguments, family)
    own = vocabulary_size(TokenizerSpec.model_validate(tokenizer)) if tokenizer else None
    model["vocab_size"] = _vocabulary(arguments) or own or found["rows"]
    written = spec_around(name or "megatron-lm", {"seq_length": 1024, **model}, found["dtype"], tokenizer)
    return load_text(yaml.safe_dump(written, sort_keys=False), f"the job made of the arguments in {source}")


def _vocabulary(arguments: Mapping[str, Any]) -> int | None:
    """The tokens that the arguments speak of: those of a NullTokenizer leave out its end of document."""
    size = int(number_of(arguments, "vocab_size", 0)) or None
    return size + 1 if size and arguments.get("tokenizer_type") == NULL_TOKENIZER else size


_WORDPIECE = {"BertWordPieceLowerCase": True, "BertWordPieceCase": False}


def _tokenizer(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """That of the arguments, where its files are here."""
    kind, model = arguments.get("tokenizer_type"), arguments.get("tokenizer_model")
    if kind in _WORDPIECE and (vocabulary := arguments.get("vocab_file")) and Path(vocabulary).is_file():
        sentinels = arguments.get("vocab_extra_ids") or 0
        if sentinels and arguments.get("legacy_tokenizer"):
            return None  # it puts two tokens of its own before them, which are not in the file
        lower = _WORDPIECE[kind]
        return {"type": "wordpiece", "path": vocabulary, "lower_case": lower, "vocab_extra_ids": sentinels}
    if kind == "GPT2BPETokenizer":
        vocabulary, merges = arguments.get("vocab_file"), arguments.get("merge_file")
        if vocabulary and merges and Path(vocabulary).is_file() and Path(merges).is_file():
            return {"type": "gpt2_bpe", "path": vocabulary, "merges": merges}
    if not isinstance(model, str) or not Path(model).exists():
        return None
    if kind == "HuggingFaceTokenizer":
        return {"type": "huggingface", "path": model}
    return {"type": "sentencepiece", "path": model} if model.endswith(".model") else None


def check_weights(source: Path, found: Mapping[str, Any], job: JobSpec) -> None:
    """See that every weight of the job's network is there, and no other. What the arguments do not say, like layers of
    another kind, shows in the weights.
    """
    if found["rows"] is None:
        raise UserError(f"{source} has no embedding.word_embeddings.weight", code="missing_embedding")
    _check_vocabulary(source, found["rows"], job)
    stored = {key: tuple(shape) for key, shape in found["tensors"].items()}
    weights = {key: shape for key, shape in stored.items() if not key.startswith(_OPTIMIZER)}
    sources, missing = find_sources(wanted_tensors(job, found["rows"], with_optimizer=False), weights)
    stray = unread(sources, weights)
    if missing or stray:
        parts = [f"it lacks {_listed(missing)}"] if missing else []
        parts += [f"it has {_listed([f'{key} of shape {list(weights[key])}' for key in stray])}"] if stray else []
        raise UserError(
            f"{source} is another network than its arguments or the job describe: {'; '.join(parts)}. Give the job "
            f"that it "
            "belongs to; parts that no job describes are not imported",
            code="network_differs",
        )


def _check_vocabulary(source: Path, rows: int, job: JobSpec) -> None:
    """See that each token of the job has a row: those behind the checkpoint's last would begin with zeros. How far
    either is padded does not matter. Raises UserError.
    """
    try:
        size = vocabulary(job).size
    except UserError as error:
        warn(f"it is not known whether {source} has a row for each token of the job: {error}")
        return
    if size > rows:
        raise UserError(
            f"{source} has {rows} rows of tokens, and {job.name} has {size} tokens: those after the last row would "
            "have no weights. Use the tokenizer that it was trained with, or set model.vocab_size to its size",
            code="vocabulary_differs",
        )


def _listed(keys: list[str]) -> str:
    rest = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + rest


def takes_optimizer(source: Path, found: Mapping[str, Any], job: JobSpec) -> bool:
    """Whether the optimizer's state comes along, which only some formats allow; said where it does not."""
    if found["optimizer"] is None:
        reason: str | None = found["left_behind"] or found["unread"] or "it has none"
    elif found["optimizer"] == WHOLE:
        reason = _against_whole(found, job)
    else:
        reason = _against_sharded(found, job)
    if reason is None:
        return True
    warn(
        f"the optimizer's state of {source} is not imported ({reason}): the run holds only its weights, for "
        "checkpoint.pretrained"
    )
    return False


def _against_whole(found: Mapping[str, Any], job: JobSpec) -> str | None:
    """Why an optimizer's state in the older format, which is Adam's, is not the job's."""
    if not job.optimizer.kind.is_adam:
        return f"it is Adam's, and the job's optimizer is {job.optimizer.name}"
    if job.precision.dtype != found["dtype"]:
        return f"it is of a training in {found['dtype']}, and the job's is in {job.precision.dtype}"
    return None


def _against_sharded(found: Mapping[str, Any], job: JobSpec) -> str | None:
    """Why one in the distributed format is not."""
    kind = found["optimizer"]
    if job.optimizer.kind.orthogonalizes:
        return "Megatron-LM keeps the state of its Muon in another form"
    if kind not in _RESHARDABLE:
        reason = f"it is {kind}, bound to the ranks that wrote it"
        if kind in _SAVED_ONCE_MORE:
            reason += (
                "; load it in Megatron-LM at its layout, train one more step with --use-distributed-optimizer "
                "--dist-ckpt-optim-fully-reshardable, and save"
            )
        return reason
    if not job.parallelism.use_distributed_optimizer:
        return "it is of a distributed optimizer, and the job has parallelism.use_distributed_optimizer: false"
    if not found["is_resumable"]:
        return "it does not say how many steps it has taken"
    if found["torn"] is not None:
        return (
            f"its copy of {found['torn']} is not that weight: behind a tied output layer that does not fill its bucket "
            "megatron-core 0.16.1 saves the state of a pipeline's last stage shifted, and it is lost"
        )
    stored = {key: tuple(shape) for key, shape in found["tensors"].items()}
    if not job.optimizer.kind.is_adam and any(".exp_avg_sq." in key for key in stored):
        return f"it is Adam's, and the job's optimizer is {job.optimizer.name}"
    _, missing = find_sources(wanted_tensors(job, found["rows"], with_optimizer=True), stored)
    return f"the job's {job.optimizer.name} wants {_listed(missing)}, which it lacks" if missing else None
