"""The questions that lead to a job spec. Each answer is checked at once against everything answered before."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.cli.jobs.job_files.job_text import job_text
from orchestrator.data.indexed_dataset.header import bin_path, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.request import SOURCE_GLOBS
from orchestrator.data.tokenizers.vocabulary import vocabulary_size
from orchestrator.errors import DataError, SpecError, UserError
from orchestrator.files.file_types import is_usual
from orchestrator.spec.documents.field_names import overridden
from orchestrator.spec.loading import load_text
from orchestrator.spec.messages.validation import errors_in_words
from orchestrator.spec.presets import has_vocabulary, preset_names, sees_images, sequence_length
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.tokenizer_type import TYPES_BY_PATH, type_of_path
from orchestrator.spec.yaml.reader import resolve_scalar

TINY = "gpt-tiny"
_TINY_BATCH = 16
_TOKENS = 1 << 19

Values = Mapping[str, Any]
"""Spec values by dotted path."""


@dataclass(frozen=True)
class Question:
    """One question about one value of the spec."""

    path: str
    text: str
    default: Callable[[Values], Any]
    parse: Callable[[str], Any]
    """The value of an answer; raises ValueError with the reason."""
    asked: Callable[[Values], bool] = lambda values: True


def whole_number(text: str) -> int:
    """A positive integer."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{text!r} is not a positive whole number")
    return number


def number(text: str) -> float:
    """A number; the schema checks its bounds."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def yes_or_no(text: str) -> bool:
    """yes, no, y, n."""
    answers = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
    if text.lower() not in answers:
        raise ValueError(f"{text!r} is neither yes nor no")
    return answers[text.lower()]


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that takes one of the choices."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


def recomputation(text: str) -> str | None:
    """none, selective or full."""
    return None if text == "none" else one_of("none", "selective", "full")(text)


def sources(text: str) -> list[dict[str, Any]] | None:
    """Blank-separated prefixes of indexed data sets, and files and folders of text, each of which becomes one; `none`
    is no data. What is not here, or cannot be read, is refused.
    """
    if text in ("none", ""):
        return None
    entries: list[dict[str, Any]] = []
    for name in text.split():
        entry = _source(name)
        if any(entry["path"] == other["path"] for other in entries):
            raise ValueError(f"{name}: {entry['path']} is named twice")
        entries.append(entry)
    return entries


def _source(name: str) -> dict[str, Any]:
    """An entry of the blend. Raises ValueError where there is nothing to read."""
    path = Path(name)
    try:
        if path.name and (path.suffix in (".idx", ".bin") or idx_path(path).exists() or bin_path(path).exists()):
            read_index(path)
            return {"path": name, "weight": 1.0}
        if path.is_dir():
            _refuse_without_text(path)
        elif path.is_file():
            path.open("rb").close()
        else:
            raise ValueError(
                f"{name} does not exist here: it is neither the prefix of a data set ({name}.idx, {name}.bin) nor a "
                f"file or "
                f"folder of text; name data on another machine with --yes --set data.blend={name}"
            )
    except UserError as error:
        raise ValueError(str(error)) from error
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error
    stem = path.resolve().name.lstrip(".").partition(".")[0] or "text"
    return {"path": f"data/{stem}", "weight": 1.0, "text": name}


def _refuse_without_text(folder: Path) -> None:
    """Raises ValueError where `orchestrator data tokenize` finds nothing in a folder; OSError where it cannot look."""

    def unreadable(error: OSError) -> None:
        raise error

    for _, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(is_usual(name, SOURCE_GLOBS) for name in names):
            return
    prefixes = sorted(path.with_suffix("") for path in folder.glob("*.idx"))
    if prefixes:
        raise ValueError(f"{folder} holds indexed data sets: name them, {' '.join(map(str, prefixes))}")
    raise ValueError(f"{folder} holds no text: files like {', '.join(SOURCE_GLOBS[:4])}")


def tokenizer_path(text: str) -> str | None:
    """The file of a tokenizer or the folder of a tokenizer.json, which is read; `bytes` is the byte-level one."""
    if text in ("bytes", ""):
        return None
    if not Path(text).exists():
        raise ValueError(f"{text} does not exist here: name a tokenizer file, the folder of a tokenizer.json, or bytes")
    kind = type_of_path(text)
    if kind is None:
        raise ValueError(f"{text} is not recognised as a tokenizer by its name: {TYPES_BY_PATH}")
    try:
        vocabulary_size(TokenizerSpec.model_validate({"type": kind, "path": text, "merges": _merges(text)}))
    except ValidationError as error:
        raise ValueError(f"{text}: {errors_in_words(error)}") from error
    except UserError as error:
        raise ValueError(str(error)) from error
    return text


def _merges(path: str) -> str | None:
    """The merges of GPT-2's vocabulary, which lie beside it."""
    beside = Path(path).with_name("merges.txt")
    return str(beside) if type_of_path(path) == "gpt2_bpe" and beside.is_file() else None


_DEGREES = tuple(f"parallelism.{name}_parallel_size" for name in ("tensor_model", "pipeline_model"))
_REPLICAS = "parallelism.data_parallel_size"
_COUNTS = (
    *("launch.nodes", "launch.gpus_per_node", "batch.micro_batch_size", "batch.num_micro_batches"),
    *("schedule.train_iters", _REPLICAS, *_DEGREES),
)
_WORDS = ("model.preset", "runtime.device", "data.tokenizer.path")
_INSTEAD_OF = {
    "batch.global_batch_size": "batch.num_micro_batches",
    "schedule.train_tokens": "schedule.train_iters",
    "schedule.train_samples": "schedule.train_iters",
}
"""Values that a person may give, and the default that says the same."""


def answers_in(overrides: Sequence[str]) -> dict[str, Any]:
    """What `KEY=VALUE` overrides answer, so far as the defaults of other questions depend on it."""
    answers: dict[str, Any] = {}
    for override in overrides:
        path, text = overridden(override), override.partition("=")[2]
        value = resolve_scalar(text.strip())
        is_count = path in _COUNTS and type(value) is int and value >= 1
        if is_count or (path in _WORDS and isinstance(value, str)):
            answers[path] = value
        elif path == "data.blend" and value is not None:
            # That there is one, and what it is called; the override itself says everything.
            answers[path] = [{"path": name.strip()} for name in text.strip().strip("[]").split(",")]
    return answers


def without_replaced(values: Values, overrides: Sequence[str]) -> dict[str, Any]:
    """The values without the defaults that overrides say in another way."""
    said = {overridden(override) for override in overrides}
    replaced = {default for path, default in _INSTEAD_OF.items() if path in said and default not in said}
    return {path: value for path, value in values.items() if path not in replaced}


def _degrees(values: Values) -> int:
    return prod(int(values.get(path, 1)) for path in _DEGREES)


def _default_gpus(values: Values) -> int:
    processes = _degrees(values) * int(values.get(_REPLICAS, 1))
    return max(1, processes // int(values["launch.nodes"]))


def _replicas(values: Values) -> int:
    return int(values["launch.nodes"]) * int(values["launch.gpus_per_node"]) // _degrees(values)


def _default_dtype(values: Values) -> str:
    slow = values["runtime.device"] == "cpu" or (values["runtime.device"] == "auto" and values["model.preset"] == TINY)
    return "fp32" if slow else "bf16"


def _is_tiny(preset: Any) -> bool:
    return str(preset).endswith("-tiny")


def _default_micro_batch_size(values: Values) -> int:
    return 8 if _is_tiny(values["model.preset"]) else 1


def _default_micro_batches(values: Values) -> int:
    """As many as make a global batch that large models are trained with, and keep a pipeline full."""
    stages = int(values["parallelism.pipeline_model_parallel_size"])
    # The pipeline is empty (PP - 1) of every (micro-batches + PP - 1) passes.
    least = 1 if stages == 1 else 4 * stages
    together = int(values["batch.micro_batch_size"]) * max(1, _replicas(values))
    wanted = -(-_global_batch(str(values["model.preset"])) // together)
    return max(least, -(-wanted // stages) * stages)


def _global_batch(preset: str) -> int:
    """Sequences of a step: about half a million tokens, as GPT-3's smaller models were trained with (arXiv:2005.14165,
    table 2.1), at most 512; few where a laptop trains.
    """
    if _is_tiny(preset) or preset not in preset_names():
        return _TINY_BATCH
    return max(1, min(512, _TOKENS // sequence_length(preset)))


def _default_tokenizer(values: Values) -> str:
    """The one that the data was made with, where a manifest names one that is here."""
    for entry in values["data.blend"]:
        try:
            manifest = read_manifest(Path(entry["path"]))
        except (DataError, ValueError):  # torn, or no path: whoever reads the data says so
            continue
        told = manifest.tokenizer if manifest is not None else None
        if told is None or told.path is None or told.merges is not None or told.vocab_extra_ids:
            continue
        if told.lower_case is not None:  # more than a path says
            continue
        try:
            return tokenizer_path(told.path) or "bytes"
        except ValueError:  # it is not here any more
            continue
    return "bytes"


_WHICH_DATA = "Your data: prefixes of tokenized data, files or folders of text; none for random tokens"
_WHICH_PRESET = "\n".join(
    ["Model presets:", *textwrap.wrap(", ".join(preset_names()), 96, break_on_hyphens=False), "Which model preset"]
)
QUESTIONS = (
    Question("name", "Name of the job", lambda v: "my-job", str),
    Question("model.preset", _WHICH_PRESET, lambda v: TINY, lambda text: one_of(*preset_names())(text)),
    Question("runtime.device", "Device to train on (auto, cuda, cpu)", lambda v: "auto", one_of("auto", "cuda", "cpu")),
    Question("launch.nodes", "How many machines", lambda v: 1, whole_number),
    Question("launch.gpus_per_node", "How many GPUs on each (on the CPU: processes)", _default_gpus, whole_number),
    Question("parallelism.tensor_model_parallel_size", "Tensor parallelism (TP)", lambda v: 1, whole_number),
    Question(
        "parallelism.sequence_parallel",
        "Sequence parallelism",
        lambda v: True,
        yes_or_no,
        lambda v: v["parallelism.tensor_model_parallel_size"] > 1,
    ),
    Question("parallelism.pipeline_model_parallel_size", "Pipeline parallelism (PP)", lambda v: 1, whole_number),
    Question(
        "parallelism.use_distributed_optimizer",
        "Shard the optimizer's state over the replicas",
        lambda v: True,
        yes_or_no,
        lambda v: _replicas(v) > 1,
    ),
    Question("batch.micro_batch_size", "Sequences in one micro-batch", _default_micro_batch_size, whole_number),
    Question(
        "batch.num_micro_batches",
        "Micro-batches per step and replica (with their size and the replicas, the global batch)",
        _default_micro_batches,
        whole_number,
    ),
    Question("precision.dtype", "Number format (bf16, fp16, fp32)", _default_dtype, one_of("bf16", "fp16", "fp32")),
    Question(
        "runtime.recompute_granularity",
        "Recompute activations to save memory (none, selective, full)",
        lambda v: "none",
        recomputation,
    ),
    Question("data.blend", _WHICH_DATA, lambda v: "none", sources),
    Question(
        "data.tokenizer.path",
        "Its tokenizer: tokenizer.json or its folder, another tokenizer's file, or bytes",
        _default_tokenizer,
        tokenizer_path,
        lambda v: v["data.blend"] is not None,
    ),
    Question("schedule.train_iters", "How many steps", lambda v: 1000, whole_number),
    Question("optimizer.lr", "Peak learning rate", lambda v: 3e-4, number),
    Question("optimizer.clip_grad", "Largest gradient norm (0: no clipping)", lambda v: 1.0, number),
)


def complete(answers: Values) -> dict[str, Any]:
    """The values of a whole job: the answers, and defaults for the questions that were not answered."""
    values = dict(answers)
    for question in QUESTIONS:
        if question.path not in values and question.asked(values):
            default = question.default(values)
            values[question.path] = question.parse(default) if isinstance(default, str) else default
    return values


def spec_values(answers: Values) -> dict[str, Any]:
    """What the answers mean in the spec, by dotted path."""
    values = complete(answers)
    steps = values["schedule.train_iters"]
    values["schedule.lr_warmup_fraction"] = 0.01
    values["checkpoint.save_interval"] = max(1, steps // 10)
    preset = values["model.preset"]
    if values["data.blend"] is None:
        values["data.random_tokens"] = True
        if preset in preset_names() and not has_vocabulary(preset):
            values["model.vocab_size"] = 1024  # this preset takes the tokenizer's, and random tokens have none
    else:
        values["evaluation.eval_interval"] = max(1, steps // 10)
        if preset in preset_names() and sees_images(preset):
            values["data.chat.packing"] = False
    if path := values.get("data.tokenizer.path"):
        values["data.tokenizer.type"] = type_of_path(path) or "huggingface"
        values["data.tokenizer.merges"] = _merges(path)
    if values["runtime.recompute_granularity"] == "full":
        values["runtime.recompute_method"] = "uniform"
        values["runtime.recompute_num_layers"] = 1
    return {path: value for path, value in values.items() if value is not None}


def problem_with(answers: Values) -> str | None:
    """What is wrong with the answers so far, every later question taken at its default; None when nothing is."""
    try:
        load_text(job_text(spec_values(answers)), "the answers")
    except SpecError as error:
        return "\n".join(
            f"{problem.message}" + (f"\n{problem.hint}" if problem.hint else "") for problem in error.problems
        )
    return None


def ask(read: Callable[[str, str], str], tell: Callable[[str], None], given: Values) -> dict[str, Any]:
    """Ask every question that `given` does not answer. `read(text, default)` returns a line, `tell` shows a reason."""
    answers = dict(given)
    for question in QUESTIONS:
        if question.path not in answers and question.asked(answers):
            answers[question.path] = _answer(question, answers, read, tell)
    return answers


def _answer(question: Question, answers: Values, read: Callable[[str, str], str], tell: Callable[[str], None]) -> Any:
    default = question.default(answers)
    shown = {True: "yes", False: "no"}[default] if isinstance(default, bool) else str(default)
    while True:
        try:
            value = question.parse(read(question.text, shown).strip())
        except ValueError as reason:
            tell(str(reason))
            continue
        problem = problem_with({**answers, question.path: value})
        if problem is None:
            return value
        tell(problem)
