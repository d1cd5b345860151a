"""Data, precision, checkpoints, evaluation, and where the job runs."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient
from orchestrator.fields.values import TO_BE_WRITTEN, environment_references
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.sections.data import BlendEntry, TokenizerSpec
from orchestrator.spec.sections.precision import PrecisionSpec
from orchestrator.spec.tokenizer_type import TYPES_BY_PATH

# What megatron-core sets for each choice; another word in the environment it refuses (`language_module.py`).
_OF_ATTENTION = {
    "NVTE_FLASH_ATTN": {"auto": "1", "fused": "0", "flash": "1"},
    "NVTE_FUSED_ATTN": {"auto": "1", "fused": "1", "flash": "0"},
    "NVTE_UNFUSED_ATTN": {"auto": "1", "fused": "0", "flash": "0"},
}
_OWNED = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|LOCAL_WORLD_SIZE|NODE_RANK|MASTER_(ADDR|PORT)|"
    r"(ORCHESTRATOR|TORCHELASTIC|PET)_.*"
)
_FOLDER_THERE = re.compile(r"/[\w./-]+", re.ASCII)


def training_data(job: JobSections) -> Iterator[Problem]:
    """A blend or random tokens, and not both, or the examples of a task."""
    data = job.data
    if data.blend is None and not data.random_tokens and not job.has_task:
        hint = "write blend: [{path: PREFIX}], or random_tokens: true for a benchmark"
        yield Problem("there is nothing to train on", ("data.blend",), hint)
    if data.blend is not None and data.random_tokens:
        message = "random_tokens: true and a blend exclude each other"
        yield Problem(message, ("data.random_tokens", "data.blend"), "keep one of them")


def random_tokens_alone(job: JobSections) -> Iterator[Problem]:
    """Random tokens stand in for every data set."""
    for name, sources in (("validation", job.data.validation), ("test", job.data.test)):
        if job.data.random_tokens and sources is not None:
            message = "random_tokens: true has no data sets of its own"
            yield Problem(message, (f"data.{name}", "data.random_tokens"), "keep one of them")


def random_vocabulary(job: JobSections) -> Iterator[Problem]:
    """Random tokens are drawn from the model's vocabulary. Where neither it, a preset nor a tokenizer is named, that of
    bytes would be meant by nobody.
    """
    found, bytes_alone = job.data.tokenizer, TokenizerSpec()
    # Field by field: beside a mistake a section may be there in parts.
    is_named = job.model.preset is not None or any(
        getattr(found, name) != getattr(bytes_alone, name) for name in TokenizerSpec.model_fields
    )
    if job.data.random_tokens and job.model.vocab_size is None and not is_named:
        paths = ("data.random_tokens", "model.vocab_size")
        yield Problem("random tokens need model.vocab_size", paths, "write vocab_size in the model section")


def training_split(job: JobSections) -> Iterator[Problem]:
    """The split leaves something to train on."""
    if job.data.blend is not None and _shares(job)[0] == 0:
        yield Problem(
            f"{job.data.split} leaves nothing to train on", ("data.split",), "the first weight is for training"
        )


def text_options(job: JobSections) -> Iterator[Problem]:
    """How text becomes a data set is said where there is text."""
    for place, entry in _entries(job):
        for name in ("json_key", "append_eod"):
            if entry.text is None and getattr(entry, name) != BlendEntry.model_fields[name].default:
                message = f"is for a source that is made from text, but {entry.path} names none"
                yield Problem(message, (f"{place}.{name}", place), "write text: FILE next to it, or leave it out")


def written_text(job: JobSections) -> Iterator[Problem]:
    """What a source writes is text of a data set, as lines of JSON."""
    read = {text for _, entry in _entries(job) for text in entry.text or ()}
    for file in job.data.sources:
        if not file.endswith(".jsonl"):
            yield Problem(f"{file} is written as lines of JSON", ("data.sources",), "let its name end in .jsonl")
        elif file not in read:
            hint = f"write text: {file} in an entry of data.blend, spelled the same"
            yield Problem(f"no data set is made from {file}", ("data.sources",), hint)


def prepared_prefix(job: JobSections) -> Iterator[Problem]:
    """A data set that is made is named by its prefix."""
    for place, entry in _entries(job):
        stem, ending = os.path.splitext(entry.path)
        if entry.text is not None and (ending in (".bin", ".idx") or os.path.basename(stem) in ("", ".", "..")):
            hint = f"write path: {stem}" if ending in (".bin", ".idx") else "write the folder and a name in it"
            message = f"{entry.path!r} is no prefix of a data set, which is made as PREFIX.bin and PREFIX.idx"
            yield Problem(message, (f"{place}.path",), hint)


def prepared_once(job: JobSections) -> Iterator[Problem]:
    """A data set that is used twice is made in one way."""
    made: dict[str, tuple[str, BlendEntry]] = {}
    for place, entry in _entries(job):
        if entry.text is None:
            continue
        first, other = made.setdefault(os.path.normpath(entry.path), (place, entry))
        if (entry.text, entry.json_key, entry.append_eod) != (other.text, other.json_key, other.append_eod):
            message = f"{entry.path} is made differently than by {first}, but is the same data set"
            yield Problem(message, (place, first), "give it its own path, or the same text and options")


def _entries(job: JobSections) -> Iterator[tuple[str, BlendEntry]]:
    """Every source with its place in the spec."""
    for name in ("blend", "validation", "test"):
        for number, entry in enumerate(getattr(job.data, name) or ()):
            yield f"data.{name}[{number}]", entry


def tokenizer_path(job: JobSections) -> Iterator[Problem]:
    """Every tokenizer but the bytes themselves comes from a file."""
    kind, path = job.data.tokenizer.type, job.data.tokenizer.path
    paths = ("data.tokenizer.path", "data.tokenizer.type")
    if kind == "byte_level" and path is not None:
        hint = f"leave it out, or write its type:\n{TYPES_BY_PATH}"
        yield Problem("the byte_level tokenizer has no files", paths, hint)
    elif kind != "byte_level" and path is None:
        yield Problem(f"type {kind} needs data.tokenizer.path", tuple(reversed(paths)), _tokenizer_file(kind))


def tokenizer_merges(job: JobSections) -> Iterator[Problem]:
    """GPT-2's tokenizer comes in two files."""
    kind, merges = job.data.tokenizer.type, job.data.tokenizer.merges
    paths = ("data.tokenizer.merges", "data.tokenizer.type")
    if kind == "gpt2_bpe" and merges is None:
        message = "type gpt2_bpe needs data.tokenizer.merges"
        yield Problem(message, tuple(reversed(paths)), "merges: the path of merges.txt")
    elif kind != "gpt2_bpe" and merges is not None:
        yield Problem(f"is for type gpt2_bpe, but type is {kind}", paths, "leave it out")


def tokenizer_case(job: JobSections) -> Iterator[Problem]:
    """Whether text is lower-cased is in the other tokenizers' files."""
    tokenizer = job.data.tokenizer
    if tokenizer.lower_case is not None and tokenizer.type != "wordpiece":
        paths = ("data.tokenizer.lower_case", "data.tokenizer.type")
        yield Problem(f"is for type wordpiece, but type is {tokenizer.type}", paths, "leave it out")


def _tokenizer_file(kind: str) -> str:
    files = {
        "huggingface": "tokenizer.json, or the folder it is in",
        "gpt2_bpe": "vocab.json",
        "wordpiece": "vocab.txt",
        "sentencepiece": "the .model file",
    }
    return f"path: the path of {files[kind]}"


def _fp16_only(name: str) -> Rule:
    default = PrecisionSpec.model_fields[name].default

    def rule(job: JobSections) -> Iterator[Problem]:
        dtype = job.precision.dtype
        if dtype != "fp16" and getattr(job.precision, name) != default:
            paths = (f"precision.{name}", "precision.dtype")
            message = f"is for dtype: fp16, but dtype is {dtype}"
            yield Problem(message, paths, "leave it out", code="fp16_only")

    return rule


fp16_only = tuple(
    _fp16_only(name)
    for name in ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
)
"""Loss scaling is for fp16."""


def loss_scales(job: JobSections) -> Iterator[Problem]:
    """The dynamic loss scale starts at its smallest or above."""
    precision = job.precision
    if precision.dtype == "fp16" and precision.min_loss_scale > precision.initial_loss_scale:
        message = f"min_loss_scale {precision.min_loss_scale:g} > initial_loss_scale {precision.initial_loss_scale:g}"
        yield Problem(message, ("precision.min_loss_scale", "precision.initial_loss_scale"), "start at it or above")


def fp16_on_cpu(job: JobSections) -> Iterator[Problem]:
    """The CPU has no fp16 training."""
    if job.runtime.device == "cpu" and job.precision.dtype == "fp16":
        message = "fp16 needs a GPU, but runtime.device is cpu"
        yield Problem(message, ("precision.dtype", "runtime.device"), "write fp32 or bf16")


def transformer_engine_on_cpu(job: JobSections) -> Iterator[Problem]:
    """Transformer Engine is for GPUs."""
    if job.runtime.device == "cpu" and job.runtime.layers == "transformer_engine":
        message = "Transformer Engine needs a GPU, but runtime.device is cpu"
        yield Problem(message, ("runtime.layers", "runtime.device"), "write torch or auto")


def kept_checkpoints(job: JobSections) -> Iterator[Problem]:
    """Only saving at fixed steps meets the multiples that are kept for good."""
    checkpoint = job.checkpoint
    if checkpoint.keep_every is not None and checkpoint.save_interval is None:
        every = checkpoint.keep_every
        message = f"keeps the checkpoints of steps {every}, {2 * every}, …, but without save_interval there are none"
        hint = f"write a save_interval that divides {every}"
        yield Problem(message, ("checkpoint.keep_every", "checkpoint.save_interval"), hint)


def pretrained_weights(job: JobSections) -> Iterator[Problem]:
    """`migrate` leaves a mark where a person has to say which weights a training begins with."""
    if job.checkpoint.pretrained == TO_BE_WRITTEN:
        hint = "write the name of a run; `orchestrator checkpoint import DIR` makes one of other weights"
        yield Problem("is a placeholder for weights that have to be named", ("checkpoint.pretrained",), hint)


def exported_checkpoints(job: JobSections) -> Iterator[Problem]:
    """What is exported is a checkpoint that was saved at a fixed step."""
    export, saved, steps = job.checkpoint.export, job.checkpoint.save_interval, job.schedule.train_iters
    if export is None:
        return
    every, paths = export.interval, ("checkpoint.export.interval", "checkpoint.save_interval")
    asked = f"exports the checkpoints of steps {every}, {2 * every}, …"
    if saved is None:
        yield Problem(f"{asked}, and without save_interval there are none", paths, f"write save_interval: {every}")
    elif every % saved:
        message = f"{asked}, and save_interval {saved} does not divide {every}: {quotient(every, saved)}"
        offers = (multiples_of(saved, paths[0], every), divisors_of(every, paths[1], saved))
        yield Refusal(message, paths, numbers=(every, saved), offers=offers)
    elif steps is not None and every > steps:
        message = f"no checkpoint would be exported: interval {every} > train_iters {steps}"
        yield Problem(message, (paths[0], "schedule.train_iters"), f"write at most {steps}, or leave export out")


def validation_data(job: JobSections) -> Iterator[Problem]:
    """Evaluation needs data that is held out."""
    evaluation, data = job.evaluation, job.data
    if evaluation.eval_interval is None and not evaluation.eval_at_start:
        return
    if data.random_tokens or data.blend is None or data.validation is not None or _shares(job)[1] > 0:
        return
    name = "eval_interval" if evaluation.eval_interval is not None else "eval_at_start"
    message = f"{name} needs validation data, but split {data.split} leaves none"
    hint = "give the second weight of data.split a share, write data.validation, or leave evaluation out"
    yield Problem(message, (f"evaluation.{name}", "data.split"), hint)


def train_step_arguments(job: JobSections) -> Iterator[Problem]:
    """Arguments are for a class that is named."""
    if job.runtime.train_step_arguments and job.runtime.train_step is None:
        paths = ("runtime.train_step_arguments", "runtime.train_step")
        yield Problem("are for a custom train step, but none is named", paths, "write train_step: module:Class")


def launcher_environment(job: JobSections) -> Iterator[Problem]:
    """Variables that say which process is which are set by the launcher."""
    for name in job.launch.env:
        if _OWNED.fullmatch(name):
            message = "is set by the launcher for each process"
            yield Problem(message, (f"launch.env.{name}",), "leave it out; sizes follow from parallelism and launch")


def attention_environment(job: JobSections) -> Iterator[Problem]:
    """Variables of Transformer Engine's that say another attention than the job would end every run."""
    for name, words in _OF_ATTENTION.items():
        value = job.launch.env.get(name)
        if value not in (None, words[job.runtime.attention_backend]) and not environment_references(value or ""):
            message = "is set from runtime.attention_backend, and megatron-core rejects other values"
            yield Problem(message, (f"launch.env.{name}",), "leave it out, and set that field")


def overlapped_param_gather(job: JobSections) -> Iterator[Problem]:
    """Parameters are gathered early by the distributed optimizer, between reductions that overlap as well."""
    parallelism = job.parallelism
    if not parallelism.overlap_param_gather:
        return
    for name in ("use_distributed_optimizer", "overlap_grad_reduce"):
        if not getattr(parallelism, name):
            paths = ("parallelism.overlap_param_gather", f"parallelism.{name}")
            yield Problem(f"needs {name}: true, but that is false", paths, "leave it out; it is set automatically")


def hosts_of_ssh(job: JobSections) -> Iterator[Problem]:
    """The executor that starts jobs on hosts needs their names, and what is written for it is for no other."""
    launch = job.launch
    if launch.on_hosts and not (launch.hosts or launch.hosts_file):
        hint = "write hosts: [node1, node2], or hosts_file: FILE"
        yield Problem("executor: ssh needs to know the machines", ("launch.executor", "launch.hosts"), hint)
    for name in ("hosts", "hosts_file", "min_nodes", "copy_to"):
        if getattr(launch, name) and not launch.on_hosts:
            paths = (f"launch.{name}", "launch.executor")
            message = f"{name} is for executor: ssh, which this job does not use"
            yield Problem(message, paths, f"leave {name} out, or write executor: ssh")


def fewest_nodes(job: JobSections) -> Iterator[Problem]:
    """A job goes on without some of its machines, not with more than it has."""
    launch = job.launch
    if launch.min_nodes is not None and launch.min_nodes > launch.nodes:
        message = f"min_nodes {launch.min_nodes} > nodes {launch.nodes}"
        yield Problem(message, ("launch.min_nodes", "launch.nodes"), f"write at most {launch.nodes}")


def copied_to_a_host(job: JobSections) -> Iterator[Problem]:
    """A run directory can be copied to the host of a run that has one: ranks read the shards of all ranks."""
    launch, path = job.launch, "launch.copy_to"
    if launch.copy_to is None:
        return
    if launch.nodes > 1:
        message = f"copy_to is for one node, and nodes is {launch.nodes}: all of them read and write its checkpoints"
        yield Problem(message, (path, "launch.nodes"), "share the run directory among the hosts, and leave it out")
    if not _FOLDER_THERE.fullmatch(launch.copy_to):
        hint = "write a path from the root, of letters, digits, and / . _ -"
        yield Problem(f"{launch.copy_to!r} is no absolute path that every shell reads the same", (path,), hint)


def _shares(job: JobSections) -> list[float]:
    """The weights of train, validation and test."""
    return [float(part) for part in job.data.split.split(",")]


RULES = (
    training_data,
    random_tokens_alone,
    random_vocabulary,
    training_split,
    text_options,
    written_text,
    prepared_prefix,
    prepared_once,
    tokenizer_path,
    tokenizer_merges,
    tokenizer_case,
    *fp16_only,
    loss_scales,
    fp16_on_cpu,
    transformer_engine_on_cpu,
    kept_checkpoints,
    pretrained_weights,
    exported_checkpoints,
    validation_data,
    train_step_arguments,
    launcher_environment,
    hosts_of_ssh,
    fewest_nodes,
    copied_to_a_host,
    attention_environment,
    overlapped_param_gather,
)
