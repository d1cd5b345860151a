"""Checkpoints out to Megatron-LM (`checkpoint export --to`) and in from it (`checkpoint import --from`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
import yaml

from orchestrator.checkpoints import MEGATRON_TRACKER, committed
from orchestrator.cli.common import print_json, warn
from orchestrator.cli.models.converting import alone, convert, size_of
from orchestrator.cli.models.weights import tell_new_meaning
from orchestrator.cli.running import check_installed, label
from orchestrator.data.vocabulary import own_vocabulary_size
from orchestrator.errors import UserError
from orchestrator.exchange.megatron_arguments import differences, require_representable, to_model
from orchestrator.exchange.torch_format.names import RANK_FOLDERS, WHOLE, is_of_ranks
from orchestrator.launch.runs import create_run
from orchestrator.planning.parameters import parameters
from orchestrator.portable import Weights
from orchestrator.rundir import RunDir, in_command, sync_folder, write_atomically
from orchestrator.spec.data import TokenizerSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, dump_resolved, load_job, load_text

_RESHARDABLE = ("fully_reshardable",)
_PARTS = {
    "gpt": {"embedding", "decoder", "output_layer"},
    "bert": {"embedding", "encoder", "output_layer", "lm_head", "pooler", "binary_head"},
}
"""What the keys of each architecture begin with."""


def is_megatron(folder: Path) -> bool:
    """Whether a folder is one that Megatron-LM saves into, or one checkpoint in it."""
    tracked = (folder / MEGATRON_TRACKER).is_file() or (folder.parent / MEGATRON_TRACKER).is_file()
    return tracked or is_of_ranks(folder)


def export_megatron(weights: Weights, checkpoint: Path, target: Path, *, as_json: bool) -> None:
    """Write a checkpoint as a folder for Megatron-LM's --load."""
    check_installed(weights.job)
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

    Raises UserError when there is none, when it is no GPT's and no BERT's, or the job's network is another.
    """
    source = _checkpoint_in(folder, iteration)
    found = convert("describe-megatron", str(source))
    architecture = _architecture(source, found)
    loaded = _job(source, found, name, job_file, architecture)
    job = loaded.job
    if job.model.architecture != architecture:
        raise UserError(f"{source} is a {architecture}, and {job.name} a {job.model.architecture}")
    if job.model.vision is not None:
        raise UserError(f"{source} is a decoder, and {job.name} has images (model.vision): import it without --job")
    _check_weights(source, found, job)
    with_optimizer = job_file is not None and _takes_optimizer(source, found, job)
    check_installed(job)
    draft = RunDir(runs / job.name / f".import-{job.config_hash[:8]}")
    with alone(draft.path, f"another process is importing {source} as {job.name} now; wait for it"):
        write_atomically(draft.path / "resolved.json", dump_resolved(job))
        target = str(draft.path / "checkpoint")
        options = ["--optimizer"] if with_optimizer else []
        done = convert("from-megatron", str(source), str(draft.path / "resolved.json"), target, *options)
        run = create_run(job, loaded.text, runs)
        run.append_event("imported", source=str(source), family="Megatron-LM", optimizer=with_optimizer)
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
        typer.echo(f"go on at iteration {done['iteration']} with `orchestrator resume {in_command(run)}`")


def _checkpoint_in(folder: Path, iteration: int | None) -> Path:
    """The folder of one checkpoint. Raises UserError when it is not of the kind that is imported."""
    source = folder
    if (folder / MEGATRON_TRACKER).is_file():
        said = (folder / MEGATRON_TRACKER).read_text(errors="replace").strip() if iteration is None else str(iteration)
        if not said.isdecimal() and said != "release":
            raise UserError(f"{folder / MEGATRON_TRACKER} does not name an iteration: {said[:40]!r}")
        source = folder / (said if said == "release" else f"iter_{int(said):07d}")
    elif iteration is not None:
        raise UserError(
            f"{folder} is one checkpoint: --iteration goes with a folder of several, with a {MEGATRON_TRACKER}"
        )
    if not source.is_dir():
        raise UserError(f"{source} does not exist")
    if not is_of_ranks(source) and not (source / ".metadata").is_file():
        raise UserError(f"{source} is no checkpoint of Megatron-LM: it has neither .metadata nor {RANK_FOLDERS}")
    return source


def _architecture(source: Path, found: Mapping[str, Any]) -> str:
    """By what its keys begin with. Raises UserError when it is none that is imported."""
    for architecture, parts in _PARTS.items():
        if set(found["kinds"]) <= parts:
            return architecture
    raise UserError(f"{source} is no GPT and no BERT, which alone are imported: it has {', '.join(found['kinds'])}")


def _job(
    source: Path, found: Mapping[str, Any], name: str | None, job_file: Path | None, architecture: str
) -> LoadedJob:
    """The job that is given, or one made of the checkpoint's arguments, which holds the network alone."""
    arguments = found["arguments"]
    if job_file is not None:
        loaded = load_job([job_file], [f"name={name}"] if name else [])
        other = differences(loaded.job, arguments, architecture) if arguments is not None else []
        if other:
            raise UserError(f"{source} is another network than that of {job_file}: {'; '.join(other)}")
        return loaded
    if arguments is None:
        why = found["unread"] or f"{source} carries no arguments that say what the network is"
        raise UserError(f"{why}; give the job with --job JOB.yaml to take the weights alone")
    tokenizer = _tokenizer(arguments)
    if tokenizer is None:
        warn(f"the tokenizer of {source} is not on this machine, or of a kind that is not read: name one yourself")
    model = to_model(arguments, architecture)
    if architecture == "bert":
        model["bert_binary_head"] = "binary_head" in found["kinds"]
    own = own_vocabulary_size(TokenizerSpec.model_validate(tokenizer)) if tokenizer else None
    model["vocab_size"] = arguments.get("vocab_size") or own or found["rows"]
    written = {
        "name": name or "megatron-lm",
        "model": {"seq_length": 1024, **model},
        "precision": {"dtype": found["dtype"]},
        "data": {"random_tokens": True, **({"tokenizer": tokenizer} if tokenizer else {})},
        "optimizer": {"lr": 1e-5},
        "schedule": {"train_iters": 100},
        "batch": {"micro_batch_size": 1, "global_batch_size": 8},
    }
    return load_text(yaml.safe_dump(written, sort_keys=False), f"the job made of the arguments in {source}")


def _tokenizer(arguments: Mapping[str, Any]) -> dict[str, str] | None:
    """That of the arguments, where its files are here."""
    kind, model = arguments.get("tokenizer_type"), arguments.get("tokenizer_model")
    if kind == "GPT2BPETokenizer":
        vocabulary, merges = arguments.get("vocab_file"), arguments.get("merge_file")
        if vocabulary and merges and Path(vocabulary).is_file() and Path(merges).is_file():
            return {"type": "gpt2_bpe", "path": vocabulary, "merges": merges}
    if not isinstance(model, str) or not Path(model).exists():
        return None
    if kind == "HuggingFaceTokenizer":
        return {"type": "huggingface", "path": model}
    return {"type": "sentencepiece", "path": model} if model.endswith(".model") else None


def _check_weights(source: Path, found: Mapping[str, Any], job: JobSpec) -> None:
    """What the arguments do not say, like layers of another kind, would show in the number of weights."""
    if found["rows"] is None:
        raise UserError(f"{source} has no embedding.word_embeddings.weight: it is no GPT and no BERT")
    wanted = parameters(job, found["rows"]).total
    if wanted != found["weights"]:
        raise UserError(
            f"{source} has {found['weights']:,} weights, and the network that its arguments or the job describe has "
            f"{wanted:,}: it has parts that are not described here"
        )


def _takes_optimizer(source: Path, found: Mapping[str, Any], job: JobSpec) -> bool:
    """Whether the optimizer's state comes along, which only some formats allow; said where it does not."""
    kind = found["optimizer"]
    if kind in _RESHARDABLE and job.parallelism.use_distributed_optimizer:
        return True
    if kind == WHOLE and job.precision.dtype == found["dtype"]:
        return True
    reason = (
        f"it is {kind}; Megatron-LM writes one that any layout reads with --use-distributed-optimizer "
        "--dist-ckpt-optim-fully-reshardable"
    )
    if kind == WHOLE:
        reason = f"it is of a training in {found['dtype']}, and the job's is in {job.precision.dtype}"
    if kind is None:
        reason = found["left_behind"] or found["unread"] or "it has none"
    warn(
        f"the optimizer's state of {source} stays behind ({reason}): the run holds its weights alone, for "
        "checkpoint.pretrained"
    )
    return False
