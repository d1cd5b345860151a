"""The questions that lead to a job spec. Each answer is checked at once against everything answered before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from orchestrator.cli.jobs.job_text import job_text
from orchestrator.data.index import read_index
from orchestrator.data.manifest import read_manifest
from orchestrator.errors import DataError, SpecError, UserError
from orchestrator.spec.field_names import overridden
from orchestrator.spec.loading import load_text
from orchestrator.spec.presets import has_vocabulary, preset_names, sees_images
from orchestrator.spec.tokenizer_type import type_of_path
from orchestrator.spec.written import resolve_scalar

TINY = "gpt-tiny"

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
    """Blank-separated prefixes of indexed data sets; `none` is no data. Torn data is refused, missing data is not."""
    if text in ("none", ""):
        return None
    for prefix in text.split():
        try:
            read_index(Path(prefix))
        except DataError as error:
            raise ValueError(str(error)) from error
        except UserError:
            continue  # it may lie on the machine that will train, or be made later
    return [{"path": prefix, "weight": 1.0} for prefix in text.split()]


def tokenizer_path(text: str) -> str | None:
    """A tokenizer.json or its folder; `bytes` is the byte-level tokenizer."""
    return None if text in ("bytes", "") else text


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


def _default_micro_batch_size(values: Values) -> int:
    return 8 if values["model.preset"] == TINY else 1


def _default_micro_batches(values: Values) -> int:
    stages = int(values["parallelism.pipeline_model_parallel_size"])
    return 1 if stages == 1 else 4 * stages  # the pipeline is empty (PP - 1) of every (micro-batches + PP - 1) passes


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
        if Path(told.path).exists():
            return told.path
    return "bytes"


QUESTIONS = (
    Question("name", "Name of the job", lambda v: "my-job", str),
    Question("model.preset", "Which model preset", lambda v: TINY, lambda text: one_of(*preset_names())(text)),
    Question(
        "runtime.device", "On what does it train (auto, cuda, cpu)", lambda v: "auto", one_of("auto", "cuda", "cpu")
    ),
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
        "Micro-batches per step and replica",
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
    Question("data.blend", "Prefixes of your tokenized data, or none for random tokens", lambda v: "none", sources),
    Question(
        "data.tokenizer.path",
        "Its tokenizer.json or the folder of it, or bytes",
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
