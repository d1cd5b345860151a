"""Matrix products in FP8."""

from __future__ import annotations

from typing import Any, get_args

from orchestrator.migration.combined_flags.base import FlagGroup
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.spec.sections.fp8 import Fp8Format, Fp8Recipe, Fp8Spec

FP8 = "precision.fp8"
_FORMAT, _RECIPE, _ENDS = "fp8-format", "fp8-recipe", "first-last-layers-bf16"
_OF_DELAYED: dict[str, tuple[str, Any]] = {
    "fp8-margin": ("margin", 0),
    "fp8-amax-history-len": ("amax_history_len", 1),
    "fp8-amax-compute-algo": ("amax_compute_algo", "most_recent"),
}
"""Field of each flag, and Megatron-LM's default, which for some is not ours."""
_COUNTS = {
    "num-layers-at-start-in-bf16": "num_layers_at_start_in_bf16",
    "num-layers-at-end-in-bf16": "num_layers_at_end_in_bf16",
}


def read_fp8(given: GivenFlags) -> None:
    details = (_RECIPE, *_OF_DELAYED, _ENDS, *_COUNTS)
    if not given.has(_FORMAT):
        given.no_effect(details, "Megatron-LM takes it with --fp8-format only")
        return
    format_, recipe = given.text(_FORMAT), given.text(_RECIPE) if given.has(_RECIPE) else "delayed"
    if format_ not in get_args(Fp8Format):
        given.write_it(_FORMAT, FP8, None if format_ is None else f"this version supports {_or(Fp8Format)}")
        given.no_effect(details, "it goes with --fp8-format")
        return
    if recipe not in get_args(Fp8Recipe):
        reason = f"this version has the recipes {_or(Fp8Recipe)}"
        given.refuse_value(_RECIPE, FP8, reason)
        given.not_supported(_FORMAT, reason, FP8)
        given.no_effect(details, f"it goes with --{_RECIPE}")
        return
    fields: dict[str, Any] = {"recipe": recipe}
    if Fp8Spec.model_validate(fields).chosen_format != format_:
        fields["format"] = format_
    fields |= _history(given) if recipe == "delayed" else {}
    fields |= _ends(given)
    given.carry(_FORMAT, FP8, fields)
    if given.has(_RECIPE):
        given.settle(_RECIPE, "carried", f"{FP8}.recipe", recipe)
    given.no_effect(tuple(_OF_DELAYED), "it is for delayed scaling")


def _history(given: GivenFlags) -> dict[str, Any]:
    """The fields of delayed scaling that differ from ours by default."""
    fields = {}
    for flag, (name, default) in _OF_DELAYED.items():
        value = default
        if given.has(flag):
            said = given.text(flag) if isinstance(default, str) else given.number(flag)
            known = said in ("max", "most_recent") if isinstance(default, str) else said is not None
            if not known or (name == "amax_history_len" and said == 0):
                given.write_it(flag, f"{FP8}.{name}")
                continue
            value = said
            given.settle(flag, "carried", f"{FP8}.{name}", value)
        if value != Fp8Spec.model_fields[name].default:
            fields[name] = value
    return fields


def _ends(given: GivenFlags) -> dict[str, Any]:
    """First and last layers in bf16."""
    if not given.has(_ENDS):
        given.no_effect(tuple(_COUNTS), "Megatron-LM takes it with --first-last-layers-bf16 only")
        return {}
    fields = {}
    for flag, name in _COUNTS.items():
        count: int | None = 1
        if given.has(flag):
            count = given.number(flag)
            if count is None:
                given.write_it(flag, f"{FP8}.{name}")
                continue
            given.settle(flag, "carried", f"{FP8}.{name}", count)
        if count:
            fields[name] = count
    given.settle(_ENDS, "carried", FP8, fields)
    return fields


def _or(choices: Any) -> str:
    return ", ".join(get_args(choices))


def write_fp8(writer: FlagWriter) -> None:
    fp8 = writer.job.precision.fp8
    if fp8 is None:
        return
    writer.add("TRAINING", _FORMAT, fp8.chosen_format)
    writer.add("TRAINING", _RECIPE, fp8.recipe)
    if fp8.format is not None and fp8.format == Fp8Spec(recipe=fp8.recipe).chosen_format:
        writer.say_otherwise(f"{FP8}.format", "it is the recipe's own")
    if fp8.recipe == "delayed":
        for flag, (name, default) in _OF_DELAYED.items():
            if getattr(fp8, name) != default:
                writer.add("TRAINING", flag, getattr(fp8, name))
    if fp8.num_layers_at_start_in_bf16 or fp8.num_layers_at_end_in_bf16:
        writer.add("TRAINING", _ENDS)
        for flag, name in _COUNTS.items():
            writer.add("TRAINING", flag, getattr(fp8, name))


FP8_TOGETHER = (
    FlagGroup(
        {_FORMAT: 1, _RECIPE: 1, **dict.fromkeys(_OF_DELAYED, 1), _ENDS: 0, **dict.fromkeys(_COUNTS, 1)},
        read_fp8,
        write_fp8,
        (FP8,),
    ),
)
