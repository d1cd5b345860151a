"""Data, precision, checkpoints, evaluation, and where the job runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.spec.precision import PrecisionSpec
from orchestrator.spec.rules.base import nearest_multiples
from orchestrator.spec.sections import JobSections

_OWNED = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|LOCAL_WORLD_SIZE|NODE_RANK|MASTER_(ADDR|PORT)|"
    r"(ORCHESTRATOR|TORCHELASTIC|PET)_.*"
)
_FP16_FIELDS = ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")


def training_data(job: JobSections) -> Iterator[Problem]:
    """A blend or random tokens, and not both."""
    data = job.data
    if data.blend is None and not data.random_tokens:
        hint = "write blend: [{path: PREFIX}], or random_tokens: true for a benchmark"
        yield Problem("there is nothing to train on", ("data.blend",), hint)
    if data.blend is not None and data.random_tokens:
        message = "random_tokens: true and a blend exclude each other"
        yield Problem(message, ("data.random_tokens", "data.blend"), "keep one of them")
    for name, sources in (("validation", data.validation), ("test", data.test)):
        if data.random_tokens and sources is not None:
            message = "random_tokens: true has no data sets of its own"
            yield Problem(message, (f"data.{name}", "data.random_tokens"), "keep one of them")


def random_vocabulary(job: JobSections) -> Iterator[Problem]:
    """Random tokens are drawn from a vocabulary that nothing else gives the size of."""
    if job.data.random_tokens and job.model.vocab_size is None:
        paths = ("data.random_tokens", "model.vocab_size")
        yield Problem("random tokens need model.vocab_size", paths, "write vocab_size in the model section")


def training_split(job: JobSections) -> Iterator[Problem]:
    """The split leaves something to train on."""
    if job.data.blend is not None and _shares(job)[0] == 0:
        yield Problem(
            f"{job.data.split} leaves nothing to train on", ("data.split",), "the first weight is for training"
        )


def tokenizer(job: JobSections) -> Iterator[Problem]:
    """Each kind of tokenizer has its own files."""
    spec = job.data.tokenizer
    at = "data.tokenizer"
    if spec.type == "byte_level":
        for name, value in (("path", spec.path), ("merges", spec.merges)):
            if value is not None:
                yield Problem("the byte_level tokenizer has no files", (f"{at}.{name}", f"{at}.type"), "leave it out")
        return
    if spec.path is None:
        yield Problem(f"type {spec.type} needs data.tokenizer.path", (f"{at}.type",), _tokenizer_file(spec.type))
    if spec.type == "gpt2_bpe" and spec.merges is None:
        yield Problem("type gpt2_bpe needs data.tokenizer.merges", (f"{at}.type",), "merges: the path of merges.txt")
    if spec.type != "gpt2_bpe" and spec.merges is not None:
        message = f"is for type gpt2_bpe, and type is {spec.type}"
        yield Problem(message, (f"{at}.merges", f"{at}.type"), "leave it out")


def _tokenizer_file(kind: str) -> str:
    files = {
        "huggingface": "tokenizer.json, or the folder it is in",
        "gpt2_bpe": "vocab.json",
        "wordpiece": "vocab.txt",
        "sentencepiece": "the .model file",
    }
    return f"path: the path of {files[kind]}"


def fp16_only(job: JobSections) -> Iterator[Problem]:
    """Loss scaling is for fp16."""
    precision = job.precision
    for name in _FP16_FIELDS:
        value = getattr(precision, name)
        if precision.dtype != "fp16" and value != PrecisionSpec.model_fields[name].default:
            message = f"is for dtype: fp16, and dtype is {precision.dtype}"
            yield Problem(message, (f"precision.{name}", "precision.dtype"), "leave it out")


def loss_scales(job: JobSections) -> Iterator[Problem]:
    """The dynamic loss scale starts at its smallest or above."""
    precision = job.precision
    if precision.dtype == "fp16" and precision.min_loss_scale > precision.initial_loss_scale:
        message = f"min_loss_scale {precision.min_loss_scale:g} > initial_loss_scale {precision.initial_loss_scale:g}"
        yield Problem(message, ("precision.min_loss_scale", "precision.initial_loss_scale"), "start at it or above")


def cpu(job: JobSections) -> Iterator[Problem]:
    """What the CPU cannot do."""
    if job.runtime.device != "cpu":
        return
    if job.precision.dtype == "fp16":
        message = "fp16 needs a GPU, and runtime.device is cpu"
        yield Problem(message, ("precision.dtype", "runtime.device"), "write fp32 or bf16")
    if job.runtime.layers == "transformer_engine":
        message = "Transformer Engine needs a GPU, and runtime.device is cpu"
        yield Problem(message, ("runtime.layers", "runtime.device"), "write torch or auto")


def save_interval(job: JobSections) -> Iterator[Problem]:
    """A save interval that is never reached is a slip: only the end would be saved."""
    interval, steps = job.checkpoint.save_interval, job.schedule.train_iters
    if interval is None or steps is None or job.checkpoint.save_seconds is not None:
        return
    if interval > steps:
        message = f"no checkpoint would be written before the end: save_interval {interval} > train_iters {steps}"
        hint = f"write at most {steps}, or leave it out to save at the end only"
        yield Problem(message, ("checkpoint.save_interval", "schedule.train_iters"), hint)


def kept_checkpoints(job: JobSections) -> Iterator[Problem]:
    """Checkpoints to keep for good are among those that are written."""
    checkpoint = job.checkpoint
    keep, interval = checkpoint.keep_every, checkpoint.save_interval
    if keep is None or interval is None or checkpoint.save_seconds is not None:
        return
    if keep % interval:
        message = f"keep_every / save_interval must be whole: {keep} / {interval} = {keep / interval:.4g}"
        hint = f"nearest keep_every: {nearest_multiples(interval, keep)}"
        yield Problem(message, ("checkpoint.keep_every", "checkpoint.save_interval"), hint)


def validation_data(job: JobSections) -> Iterator[Problem]:
    """Evaluation needs data that is held out."""
    evaluation, data = job.evaluation, job.data
    if evaluation.eval_interval is None and not evaluation.eval_at_start:
        return
    if data.random_tokens or data.blend is None or data.validation is not None or _shares(job)[1] > 0:
        return
    name = "eval_interval" if evaluation.eval_interval is not None else "eval_at_start"
    message = f"{name} needs validation data, and split {data.split} leaves none"
    hint = "give the second weight of data.split a share, write data.validation, or leave evaluation out"
    yield Problem(message, (f"evaluation.{name}", "data.split"), hint)


def owned_environment(job: JobSections) -> Iterator[Problem]:
    """Variables that say which process is which are set by the launcher."""
    for name in job.launch.env:
        if _OWNED.fullmatch(name):
            message = "is set by the launcher for each process"
            yield Problem(message, (f"launch.env.{name}",), "leave it out; sizes follow from parallelism and launch")


def overlapped_param_gather(job: JobSections) -> Iterator[Problem]:
    """Parameters are gathered early by the distributed optimizer, between reductions that overlap as well."""
    parallelism = job.parallelism
    if not parallelism.overlap_param_gather:
        return
    for name in ("use_distributed_optimizer", "overlap_grad_reduce"):
        if not getattr(parallelism, name):
            paths = ("parallelism.overlap_param_gather", f"parallelism.{name}")
            yield Problem(f"needs {name}: true, and that is false", paths, "leave it out; it follows by itself")


def _shares(job: JobSections) -> list[float]:
    """The weights of train, validation and test."""
    return [float(part) for part in job.data.split.split(",")]


RULES = (
    training_data,
    random_vocabulary,
    training_split,
    tokenizer,
    fp16_only,
    loss_scales,
    cpu,
    save_interval,
    kept_checkpoints,
    validation_data,
    owned_environment,
    overlapped_param_gather,
)
