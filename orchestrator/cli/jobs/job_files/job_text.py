"""A job spec as commented YAML. The comments are the schema's own descriptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.fields.docstrings import docstrings
from orchestrator.fields.formatting import as_yaml
from orchestrator.spec.job import JobSpec
from orchestrator.spec.presets import preset_names, sees_images
from orchestrator.spec.schema.shape import sections

WIDTH = 120

OPTIONS = {
    "parallelism.virtual_pipeline_model_parallel_size": "2",
    "batch.rampup_batch_size": "[8, 8, 1000]",
    "data.validation": "[data/held_out]",
    "schedule.train_tokens": "1.5B",
    "checkpoint.save_seconds": "30m",
    "checkpoint.keep_every": "1000",
    "evaluation.eval_iters": "10",
    "tracking.uri": "${env:MLFLOW_TRACKING_URI}",
    "launch.env": "{NCCL_DEBUG: WARN}",
    "runtime.hang_timeout": "30m",
}
"""Options that are shown commented out, with a value as YAML for each."""

YOUR_DATA = (
    "To train on your own text, remove random_tokens (and model.vocab_size if the preset has none), and fill in:",
    "blend: [{path: data/mine, text: my-text/}]  # made from this text first; without `text` it must already exist",
    "tokenizer: {path: data/tokenizer.json}  # written by `orchestrator data train-tokenizer`, or a model's own",
)
"""Comments of the data section of a job that trains on random tokens."""


CONVERSATIONS = "chat: {packing: false}  # conversations with images, one per sequence"
"""Of a model that sees, beside these."""


def job_text(values: Mapping[str, Any]) -> str:
    """YAML of a job from values by dotted path, section by section in the schema's order.

    Options of OPTIONS that have no value are added as comments; a section of which nothing is set is all comment.
    """
    lines = [
        "# A job spec. `orchestrator validate` checks it, `orchestrator plan` shows what it will do,",
        "# `orchestrator run` trains it; `orchestrator schema` lists every option.",
        "",
        _commented("name", as_yaml(values["name"]), docstrings(JobSpec)["name"]),
    ]
    for path, section in sections().items():
        if len(path) != 1:
            continue
        block, options = _section_lines(path[0], values), _option_lines(path[0], values)
        summary = (section.__doc__ or "").strip().split("\n")[0]
        if path == ("data",) and "data.blend" not in values:
            options = [*YOUR_DATA, *([CONVERSATIONS] if _sees(values) else []), *options]
        if block:
            lines += ["", f"# {summary}", f"{path[0]}:", *block, *(f"  # {option}" for option in options)]
        elif options:
            lines += ["", f"# {summary}", f"# {path[0]}:", *(f"#   {option}" for option in options)]
    return "\n".join(lines) + "\n"


def _sees(values: Mapping[str, Any]) -> bool:
    preset = values.get("model.preset")
    return preset in preset_names() and sees_images(str(preset))


def _section_lines(name: str, values: Mapping[str, Any]) -> list[str]:
    lines = []
    section, inside = sections()[(name,)], _below(name, values)
    for key in section.model_fields:
        if key in inside:
            lines += _entry(key, inside[key], docstrings(section)[key])
        elif nested := _below(key, inside):
            lines += [f"  {key}:", *(f"    {inner}: {as_yaml(value)}" for inner, value in nested.items())]
    return lines


def _below(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values whose paths begin with a name, by what follows it."""
    prefix = f"{name}."
    return {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}


def _option_lines(name: str, values: Mapping[str, Any]) -> list[str]:
    return [
        _commented(key, example, docstrings(sections()[(section,)])[key], WIDTH - 4)
        for (section, key), example in ((path.split("."), example) for path, example in OPTIONS.items())
        if section == name and f"{section}.{key}" not in values
    ]


def _entry(key: str, value: Any, description: str | None) -> list[str]:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        items = []
        for item in value:
            first, *rest = (f"{inner}: {as_yaml(content)}" for inner, content in item.items())
            items += [f"    - {first}", *(f"      {line}" for line in rest)]
        return [f"  {key}:", *items]
    return ["  " + _commented(key, as_yaml(value), description, WIDTH - 2)]


def _commented(key: str, value: str, description: str | None, width: int = WIDTH) -> str:
    """`key: value  # description`, the description's first sentence where it fits."""
    line = f"{key}: {value}"
    comment = re.split(r"\.(?:\s|$)", (description or "").replace("\n", " "), maxsplit=1)[0]
    return f"{line}  # {comment}" if comment and len(line) + len(comment) + 4 <= width else line
