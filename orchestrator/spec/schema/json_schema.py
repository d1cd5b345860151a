"""The JSON schema of a job spec as it is written, for editors."""

from __future__ import annotations

from typing import Any

from orchestrator.fields.docstrings import documented_schema
from orchestrator.spec.job import JobSpec
from orchestrator.spec.presets import preset_names
from orchestrator.spec.sweep import SweepSpec

TITLE = "Job spec"
_EXTENDS = {
    "type": "string",
    "title": "Extends",
    "description": "Another job spec, relative to this file, that this one overrides.",
}
_BASE = {
    "type": "string",
    "title": "Base",
    "description": "The job that a sweep varies, relative to this file: `extends` for `orchestrator sweep`.",
}


def job_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of one YAML file.

    A file may leave out what it extends, a preset, or another file fills in, so that nothing is required at the top and
    in the sections; `orchestrator validate` checks that the job is complete. `null` takes a key back to its default.
    """
    schema = documented_schema(JobSpec)
    definitions = schema["$defs"]
    for definition in (schema, *(definitions[name] for name in definitions if name != "BlendEntry")):
        definition.pop("required", None)
    for definition in (schema, *definitions.values()):
        _describe(definition)
    model = definitions["ModelSpec"]["properties"]
    names = {"type": "string", "enum": preset_names()}
    model["preset"] = {**model["preset"], "anyOf": [names, {"type": "null"}]}
    _accept_shorthand(definitions)
    sweep = documented_schema(SweepSpec)
    definitions |= sweep.pop("$defs")
    schema["properties"] = {"extends": _EXTENDS, "base": _BASE, **schema["properties"], "sweep": sweep}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _describe(definition: dict[str, Any]) -> None:
    """Let `null` stand for every default, and drop titles that only repeat the key."""
    for name, field in definition.get("properties", {}).items():
        field.pop("title", None)
        if "$ref" in field:
            reference = field.pop("$ref")
            field["anyOf"] = [{"$ref": reference}, {"type": "null"}]
        elif "anyOf" in field:
            if {"type": "null"} not in field["anyOf"]:
                field["anyOf"].append({"type": "null"})
        elif isinstance(field.get("type"), str) and "enum" not in field and "const" not in field:
            field["type"] = [field["type"], "null"]
        definition["properties"][name] = field


def _accept_shorthand(definitions: dict[str, Any]) -> None:
    """What stands for a mapping: a source's path, Megatron's flat blend and its `[start, increment, samples]`."""
    number_or_text = {"type": ["number", "string"]}
    shorthand = {
        "description": "Megatron's [weight, prefix, weight, prefix, …].",
        "type": "array",
        "items": number_or_text,
        "minItems": 1,
    }
    data = definitions["DataSpec"]["properties"]
    for name in ("blend", "validation", "test"):
        for form in data[name]["anyOf"]:
            if "items" in form:
                form["items"] = {"anyOf": [form["items"], {"type": "string"}]}
        data[name]["anyOf"] = [*data[name]["anyOf"], shorthand, {"type": "string"}]
    rampup = definitions["BatchSpec"]["properties"]["rampup_batch_size"]
    triple = {"type": "array", "items": number_or_text, "minItems": 3, "maxItems": 3}
    rampup["anyOf"] = [*rampup["anyOf"], triple]
