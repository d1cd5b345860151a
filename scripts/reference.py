"""Write docs/reference/ from the code: the job spec from its models, the commands from their own help.

    python scripts/reference.py

A test compares the pages with what this would write, so they cannot go stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from orchestrator.cli.main import COMMANDS, build_app, value_name
from orchestrator.fields.base import Section
from orchestrator.fields.docstrings import documented_schema
from orchestrator.migration.megatron_flags.performance import ANSWERS, GROUPS
from orchestrator.planning.hardware.fitted_constants import ANY, entries
from orchestrator.planning.hardware.profiles import GpuProfile
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.documents.field_names import short_names
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sweep import SweepSpec

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Written by `make docs`; edit the docstrings in the code instead. -->\n\n"


def pages() -> dict[str, str]:
    """File name -> content of every reference page."""
    return {
        "job-spec.md": spec_page(),
        "sweep.md": sweep_page(),
        "cluster-profile.md": profile_page(),
        "gpu-profile.md": gpu_page(),
        "fitted-constants.md": constants_page(),
        "commands.md": commands_page(),
        "megatron-performance-flags.md": flags_page(),
    }


def spec_page() -> str:
    """Every key of a job spec: type, default and meaning."""
    intro = (
        "One YAML file describes one job. Unknown keys are refused. `orchestrator schema` prints the same as a JSON\n"
        "schema, for editors."
    )
    return document_page("The job spec", intro, JobSpec)


def sweep_page() -> str:
    """Every key of a sweep."""
    intro = (
        "The `sweep:` section of a job file, or of a file with a `base:`; [how to use it](../how-to/sweeps.md).\n"
        "Fields are named in full (`optimizer.lr`), by their last word where that says it all (`lr`), or in short\n"
        f"({', '.join(f'`{name}`' for name in short_names())})."
    )
    return document_page("The sweep", intro, SweepSpec)


def profile_page() -> str:
    """Every key of a cluster profile."""
    intro = (
        "One YAML file describes one SLURM cluster: `clusters/NAME.yaml` in a project, or\n"
        "`~/.config/orchestrator/clusters/NAME.yaml`. `orchestrator cluster init` writes one;\n"
        "[how to use it](../how-to/slurm.md#describe-a-cluster). Unknown keys are refused."
    )
    return document_page("The cluster profile", intro, ClusterSpec)


def gpu_page() -> str:
    """Every key of a GPU profile."""
    intro = (
        "One YAML file describes one calibrated GPU: `gpus/NAME.yaml` in a project, or\n"
        "`~/.config/orchestrator/gpus/NAME.yaml`. `orchestrator calibrate` writes one;\n"
        "[how to use it](../how-to/plan.md#calibrate-a-gpu). Unknown keys are refused."
    )
    return document_page("The GPU profile", intro, GpuProfile)


def constants_page() -> str:
    """Every number that was fitted to measurements."""
    parts = [
        f"{NOTE}# Fitted constants\n\n"
        "The numbers in the plan's models of memory and time that follow from measurements, not from algorithms or\n"
        "data sheets: `orchestrator/planning/hardware/fitted_constants.json`. Two numbers are of the forward and of\n"
        'the backward pass. "Counted" are reads, writes and kernels of the code that is named, "assumed" what nobody\n'
        "measured. `calibrate` measures those of `efficiency` on your GPU;\n"
        "[how](../how-to/plan.md#calibrate-a-gpu).\n"
    ]
    for group, subjects in entries().items():
        for subject, found in subjects.items():
            where = "" if group == ANY else f" ({group})"
            parts.append(
                f"\n## `{subject}`{where}\n\n| name | value | unit | from | meaning |\n|---|---|---|---|---|\n"
            )
            parts.extend(_constant_row(name, entry) for name, entry in found.items())
    return "".join(parts)


def _constant_row(name: str, entry: Mapping[str, Any]) -> str:
    value, source = entry["value"], entry["source"]
    if isinstance(value, dict):
        pair = value.keys() == {"forward", "backward"}
        shown = ", ".join(f"{each:.4g}" if pair else f"{key} {each:.4g}" for key, each in value.items())
    elif isinstance(value, list):
        shown = "; ".join(", ".join(f"{each:g}" for each in row) for row in value)
    else:
        shown = f"{value:.4g}"
    page, _, section = source.partition("#")
    link = f"[{section.replace('-', ' ')}](../{page.removeprefix('docs/')}#{section})" if section else source
    origin = f"{entry['measured_on']}, {entry['date']}: {link}"
    return f"| `{name}` | {shown} | {entry['unit']} | {origin} | {entry['meaning']} |\n"


def document_page(title: str, intro: str, model: type[Section]) -> str:
    """Every key of a kind of file, section by section."""
    schema = documented_schema(model)
    parts = [NOTE, f"# {title}\n\n{intro}\n\n"]
    fields = schema["properties"].items()
    parts.append(_field_table(model, schema, only=[name for name, field in fields if _section_of(field) is None]))
    for name, field in fields:
        section = _section_of(field) or _section_of(field.get("additionalProperties") or {})
        path = name if _section_of(field) else f"{name}.NAME"
        if section is not None:
            parts.extend(_section_parts(path, section, schema, depth=2))
    return "".join(parts).rstrip() + "\n"


def _section_parts(path: str, section: str, schema: dict[str, Any], depth: int) -> Iterator[str]:
    definition = schema["$defs"][section]
    model = _models()[section]
    yield f"{'#' * depth} `{path}`\n\n{_prose(definition['description'])}\n\n"
    yield _field_table(model, definition)
    described = set()
    for name, field in definition["properties"].items():
        nested = _section_of(field) or _section_of(field.get("additionalProperties") or {})
        inner = f"{path}.{name}" if _section_of(field) else f"{path}.{name}.NAME"
        if nested is not None and nested not in described:
            described.add(nested)
            yield from _section_parts(inner, nested, schema, depth + 1)


def _models() -> dict[str, type[Section]]:
    found: dict[str, type[Section]] = {}
    pending: list[type[Section]] = [Section]
    while pending:
        for model in pending.pop().__subclasses__():
            found[model.__name__] = model
            pending.append(model)
    return found


def _section_of(field: dict[str, Any]) -> str | None:
    """The definition that a field's schema leads to, directly, in a list, or as one of several choices."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    parts = [*field.get("anyOf", []), *([field["items"]] if "items" in field else [])]
    return next((found for part in parts if (found := _section_of(part))), None)


def _field_table(model: type[Section], schema: dict[str, Any], only: list[str] | None = None) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        if only is None or name in only:
            cells = [f"`{name}`", _type_text(field), _default(model, name), field.get("description", "")]
            rows.append("| " + " | ".join(_prose(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n\n"


def _default(model: type[Section], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, Section):
        return ""
    return f"`{json.dumps(value)}`"


def _type_text(schema: dict[str, Any]) -> str:
    if "examples" in schema:
        return "like " + ", ".join(f"`{example}`" for example in schema["examples"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    choices = [choice for choice in schema.get("anyOf", []) if choice.get("type") != "null"]
    if choices:
        return " or ".join(dict.fromkeys(_type_text(choice) for choice in choices))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type_text(schema.get('items', {}))}"
    if kind == "object":
        return "mapping"
    if kind == "boolean":
        return "`true`, `false`"
    if "$ref" in schema:
        return "section"
    if kind is None:
        return "any value"
    bounds = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    # A bound that only keeps a number inside the machine's integers tells a reader nothing.
    given = {key: schema[key] for key in bounds if abs(schema.get(key, 2**31)) < 2**31 - 1}
    limits = " and ".join(f"{bounds[key]} {value:g}" for key, value in given.items())
    return f"{'text' if kind == 'string' else kind} {limits}".strip()


def flags_page() -> str:
    """Every flag of Megatron-LM that makes a training faster or smaller."""
    parts = [
        f"{NOTE}# Megatron-LM's flags for speed and memory\n\n"
        "Every flag of Megatron-LM (core_v0.16.1 and core_v0.19.0) that makes a training faster or smaller, and the\n"
        "fields of megatron-core's configurations behind them (a field that is not named has its flag's name).\n"
        "`migrate` writes the key if there is one, and otherwise gives the reason below.\n"
        "`render --as megatron-lm` writes the flags that are on here. Flags have their Megatron-LM names:\n"
        "one that begins with `no-` or `disable-` turns the feature off. [How to migrate](../how-to/migrate.md).\n"
    ]
    for answer, meaning in ANSWERS.items():
        parts.append(f"\n## {meaning[0].upper()}{meaning[1:]}\n\n| flags | fields | |\n|---|---|---|\n")
        for group in GROUPS:
            if group.answer == answer:
                flags, fields = (", ".join(f"`{name}`" for name in names) for names in (group.flags, group.fields))
                parts.append(f"| {flags} | {fields} | {group.where} |\n")
    return "".join(parts)


def commands_page() -> str:
    """Every command with its help, arguments and options."""
    parts = [
        NOTE,
        "# Commands\n\n",
        "Exit codes: 0 done, 1 the job failed, 2 the input is wrong.\n\n",
    ]
    for entry in COMMANDS:
        command = typer.main.get_command(build_app(entry.name)).commands[entry.name]  # type: ignore[attr-defined]
        parts.extend(_command_parts(f"orchestrator {entry.name}", command, depth=2))
    return "".join(parts).rstrip() + "\n"


def _command_parts(path: str, command: Any, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} `{path}`\n\n{_help_text(command)}"
    rows = [row for parameter in command.params if (row := _parameter_row(parameter))]
    if rows:
        yield "\n".join(["| | | default |", "|---|---|---|", *rows]) + "\n\n"
    for name, child in getattr(command, "commands", {}).items():
        yield from _command_parts(f"{path} {name}", child, depth + 1)


def _help_text(command: Any) -> str:
    """The help's prose, and its example, which stands below it or in the epilog, as a block of code."""
    text = "\n".join([command.help or "", command.epilog or ""]).replace("\b\n", "")
    prose, _, example = text.partition("Example:")
    lines = [line.strip() for line in example.strip().splitlines()]
    block = ["```", *lines, "```", "", ""] if lines else []
    return _prose(prose) + "\n\n" + "\n".join(block)


def _parameter_row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    if parameter.opts[0].startswith("-"):
        value = value_name(parameter)
        label = ", ".join(parameter.opts) + ("" if value is None else f" {value}")
        label += "".join(f" / {option}" for option in parameter.secondary_opts)
    else:
        label = str(parameter.metavar or parameter.name.upper())
    default = "required" if parameter.required else ""
    if parameter.default not in (None, False, (), []) and not callable(parameter.default) and not parameter.required:
        default = f"`{parameter.default}`"
    cells = [f"`{label}`", _prose(parameter.help or ""), default]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _prose(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for page, content in pages().items():
        (REFERENCE / page).write_text(content)
        sys.stdout.write(f"docs/reference/{page}\n")
