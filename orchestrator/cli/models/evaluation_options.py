"""What `evaluate` asks for: from options to tasks, with everything that can be said without loading the network."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.data.checks import path_names
from orchestrator.errors import MissingDependency, UserError
from orchestrator.models.registry import FamilyTable
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, Kind, file_facts, read_text
from orchestrator.spec.job import JobSpec
from orchestrator.spec.messages.suggestions import closest

_TASKS: tuple[Kind, ...] = ("mnli", "race")
_TEXTS: tuple[Kind, ...] = ("wikitext", "text")
_WHY_NOT = FamilyTable[str | None](
    gpt=None,
    mamba=None,
    bert="a BERT predicts masked tokens from both sides, and has no next token to score; evaluate a fine-tuned one "
    "with --mnli or --race",
    t5="a T5 restores spans that were removed from its input, which its losses on a validation set measure",
)
"""Why no text is scored with its models; None where it is."""
_NAMED = re.compile(rb"""^["']?(?:task|group)["']?: *["']?([\w.-]+)""", re.MULTILINE)
"""What a YAML file of lm-evaluation-harness calls its task or its group of tasks."""


@dataclass(frozen=True)
class Options:
    """What a person has asked for. Files by kind; for `lm-eval`, names of tasks or their YAML files."""

    files: dict[Kind, list[Path]] = field(default_factory=dict)
    harness: Sequence[str] = ()
    strict: bool = True
    seq_length: int | None = None
    overlapping_eval: int | None = None
    add_bos: bool = False
    include_path: Sequence[Path] = ()
    num_fewshot: int | None = None
    limit: int | None = None


def asked_of(options: Options, job: JobSpec, label: str) -> list[EvaluationRequest]:
    """The tasks. Raises UserError for what is not there, and for what this model cannot be measured on."""
    files = dict(options.files)
    if not any(files.values()) and not options.harness:
        if not job.has_task or not job.labelled_task.validation:
            raise UserError(
                "name what to measure: --wikitext, --text, --lambada, --mnli or --race with a file, "
                "or --lm-eval with a task",
                code="nothing_to_measure",
            )
        files = {job.labelled_task.name: [Path(path) for path in job.labelled_task.validation]}
    for kind in (kind for kind, paths in files.items() if paths):
        _check_family(kind, job, label)
    if options.harness:
        _check_family("lm-eval", job, label)
        _check_installed(job)
    asked: list[EvaluationRequest] = []
    for kind, paths in files.items():
        asked += _of_files(kind, paths, _settings(kind, options, job))
    return asked + [_of_harness(name, options, job) for name in options.harness]


def _check_family(kind: Kind, job: JobSpec, label: str) -> None:
    if kind not in _TASKS:
        if (reason := _WHY_NOT.of(job.model.family)) is not None:
            raise UserError(f"{label} cannot be measured by --{kind}: {reason}", code="measure_not_for_model")
    elif not job.has_task:
        raise UserError(
            f"{label} cannot be measured by --{kind}: it has no head for {kind.upper()}; fine-tune a BERT on it first "
            f"(`task: {{name: {kind}, …}}` in its job)",
            code="not_fine_tuned_on_task",
        )
    elif job.labelled_task.name != kind:
        raise UserError(
            f"{label} was fine-tuned on {job.labelled_task.name.upper()}, but --{kind} needs one that was fine-tuned "
            f"on "
            f"{kind.upper()}",
            code="not_fine_tuned_on_task",
        )


def _check_installed(job: JobSpec) -> None:
    if job.launch.python is None and importlib.util.find_spec("lm_eval") is None:
        raise MissingDependency(
            "--lm-eval needs the library lm-eval, which this Python lacks: pip install 'megatron-orchestrator[lm-eval]'"
        )


def _check_name(name: str) -> None:
    """Raises UserError, with the nearest names, where no file of the library's tasks has a word that would name this
    one: the library would find it out itself, after many seconds of reading what those files mean.
    """
    library = importlib.util.find_spec("lm_eval")
    assert library is not None, "this was looked for before"
    assert library.submodule_search_locations is not None, "it is no single file"
    named = name.encode()
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])".encode())
    [where] = library.submodule_search_locations
    # First those folders that a task of theirs begins with: hellaswag, mmlu_anatomy.
    folders = sorted(Path(where, "tasks").iterdir(), key=lambda folder: not name.startswith(folder.name))
    names: set[str] = set()
    for path in (path for folder in folders for path in _files_in(folder)):
        text = Path(path).read_bytes()
        if named in text and word.search(text):
            return
        if path.endswith(".yaml"):
            names.update(found.decode() for found in _NAMED.findall(text))
    near = " or ".join(closest(name, sorted(names)))
    meant = f" (did you mean {near}?)" if near else ""
    raise UserError(
        f"--lm-eval {name}: there is no such task{meant}, and no such YAML file; your own tasks are looked up in "
        "--include-path DIR",
        code="missing_harness_task",
    )


def _files_in(place: str | Path) -> Iterator[str]:
    """A file itself, or all below a folder. There are 16,000: pathlib takes longer to name them than to read them."""
    if not os.path.isdir(place):
        yield os.fspath(place)
        return
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_in(entry.path)
            elif entry.is_file():
                yield entry.path


def _settings(kind: Kind, options: Options, job: JobSpec) -> dict[str, Any]:
    """The options that say what the numbers of a kind mean."""
    if kind in _TASKS:
        return {}
    settings: dict[str, Any] = {"add_bos": options.add_bos}
    if kind == "lambada":
        return settings | {"strict": options.strict}
    model = job.model
    length = options.seq_length or model.seq_length
    if model.position_embedding_type == "learned_absolute" and length > model.positions:
        raise UserError(
            f"--seq-length {length} is more than the {model.positions} positions that the model has learned",
            code="sequence_too_long",
        )
    least = 2 if options.add_bos else 1
    if length < least:
        raise UserError(f"--seq-length {length} is too short: {least} at least", code="sequence_too_short")
    if options.overlapping_eval is not None and options.overlapping_eval > length - least + 1:
        raise UserError(
            f"--overlapping-eval {options.overlapping_eval} is more than the {length - least + 1} tokens that a window "
            "scores: it is the number of tokens from one window to the next, and the others are context",
            code="window_too_long",
        )
    return settings | {"seq_length": length, "overlapping_eval": options.overlapping_eval}


def _of_files(kind: Kind, paths: Sequence[Path], settings: dict[str, Any]) -> list[EvaluationRequest]:
    found = []
    absolute = [path.expanduser().absolute() for path in paths]
    for path in absolute:
        if not path.exists():
            raise UserError(f"--{kind} {path} is not there", code="file_not_found")
        if path.is_dir() and kind != "race":
            raise UserError(f"--{kind} {path} is a folder, but a file is needed", code="file_is_folder")
        if kind in _TEXTS:
            read_text(path)  # what is wrong with it is said before anything is started
    for path, name in zip(absolute, path_names([str(path) for path in absolute]) if absolute else [], strict=True):
        found.append(EvaluationRequest(kind, f"{kind}/{name}", str(path), settings, [file_facts(path)]))
    return found


def _of_harness(name: str, options: Options, job: JobSpec) -> EvaluationRequest:
    path = Path(name).expanduser()
    is_file = path.suffix in (".yaml", ".yml")
    if is_file and not path.is_file():
        raise UserError(f"--lm-eval {name} is not there", code="file_not_found")
    for folder in options.include_path:
        if not folder.is_dir():
            raise UserError(f"--include-path {folder} is not a folder", code="not_a_folder")
    if not path.is_file() and not options.include_path and job.launch.python is None:
        _check_name(name)
    settings = {
        "add_bos": options.add_bos,
        "include_path": [str(folder.absolute()) for folder in options.include_path],
        "num_fewshot": options.num_fewshot,
        "limit": options.limit,
    }
    return EvaluationRequest(
        "lm-eval", f"lm-eval/{path.stem if is_file else name}", str(path.absolute()) if is_file else name, settings
    )
