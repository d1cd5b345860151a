"""Matrix products in FP8 and FP4."""

from __future__ import annotations

from typing import Any, get_args

from orchestrator.kernel_selection.experts import expert_products
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.blocks.flags import FlagGroup
from orchestrator.spec.sections.quantization import Fp4Recipe, Fp8Format, Fp8Recipe, Fp8Spec

FP8, FP4 = "precision.fp8", "precision.fp4"
_FORMAT, _RECIPE, _ENDS = "fp8-format", "fp8-recipe", "first-last-layers-bf16"
_FORMAT_OF_FP4, _RECIPE_OF_FP4, _E2M1 = "fp4-format", "fp4-recipe", "e2m1"
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


def read_quantization(given: GivenFlags) -> None:
    """FP8 and FP4; Megatron-LM refuses both together."""
    if given.has(_FORMAT_OF_FP4) and given.has(_FORMAT):
        given.refuse_value(_FORMAT_OF_FP4, FP4, "products are in FP8 or in FP4")
        given.no_effect(_RECIPE_OF_FP4, "it goes with --fp4-format")
    elif given.has(_FORMAT_OF_FP4):
        _read_fp4(given)
    given.no_effect(_RECIPE_OF_FP4, "Megatron-LM takes it with --fp4-format only")
    if given.has(_FORMAT):
        _read_fp8(given)
    given.no_effect((_RECIPE, *_OF_DELAYED), "Megatron-LM takes it with --fp8-format only")
    given.no_effect((_ENDS, *_COUNTS), "Megatron-LM takes it with --fp8-format or --fp4-format only")


def _read_fp4(given: GivenFlags) -> None:
    format_, recipe = given.text(_FORMAT_OF_FP4), given.text(_RECIPE_OF_FP4) if given.has(_RECIPE_OF_FP4) else "nvfp4"
    if format_ != _E2M1:
        given.write_it(_FORMAT_OF_FP4, FP4, None if format_ is None else f"this version supports {_E2M1}")
        given.no_effect((_RECIPE_OF_FP4, _ENDS, *_COUNTS), "it goes with --fp4-format")
        return
    if recipe not in get_args(Fp4Recipe):
        reason = f"this version has the recipe {_or(Fp4Recipe)}"
        given.refuse_value(_RECIPE_OF_FP4, FP4, reason)
        given.not_supported(_FORMAT_OF_FP4, reason, FP4)
        given.no_effect((_ENDS, *_COUNTS), f"it goes with --{_RECIPE_OF_FP4}")
        return
    given.carry(_FORMAT_OF_FP4, FP4, {"recipe": recipe, **_ends(given, FP4)})
    if given.has(_RECIPE_OF_FP4):
        given.settle(_RECIPE_OF_FP4, "carried", f"{FP4}.recipe", recipe)


def _read_fp8(given: GivenFlags) -> None:
    details = (_RECIPE, *_OF_DELAYED, _ENDS, *_COUNTS)
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
    fields |= _ends(given, FP8)
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


def _ends(given: GivenFlags, path: str) -> dict[str, Any]:
    """First and last layers in bf16, of the section at `path`."""
    if not given.has(_ENDS):
        given.no_effect(tuple(_COUNTS), "Megatron-LM takes it with --first-last-layers-bf16 only")
        return {}
    fields = {}
    for flag, name in _COUNTS.items():
        count: int | None = 1
        if given.has(flag):
            count = given.number(flag)
            if count is None:
                given.write_it(flag, f"{path}.{name}")
                continue
            given.settle(flag, "carried", f"{path}.{name}", count)
        if count:
            fields[name] = count
    given.settle(_ENDS, "carried", path, fields)
    return fields


def _or(choices: Any) -> str:
    return ", ".join(get_args(choices))


def write_quantization(writer: FlagWriter) -> None:
    narrow = writer.job.precision.quantization
    if isinstance(narrow, Fp8Spec):
        _write_fp8(writer, narrow)
    elif narrow is not None:
        writer.add("TRAINING", _FORMAT_OF_FP4, _E2M1)
        writer.add("TRAINING", _RECIPE_OF_FP4, narrow.recipe)
    if narrow is not None and any(narrow.ends_in_bf16):
        writer.add("TRAINING", _ENDS)
        for flag, count in zip(_COUNTS, narrow.ends_in_bf16, strict=True):
            writer.add("TRAINING", flag, count)


def _write_fp8(writer: FlagWriter, fp8: Fp8Spec) -> None:
    writer.add("TRAINING", _FORMAT, fp8.chosen_format)
    writer.add("TRAINING", _RECIPE, fp8.recipe)
    if fp8.format is not None and fp8.format == Fp8Spec(recipe=fp8.recipe).chosen_format:
        writer.say_otherwise(f"{FP8}.format", "it is the recipe's own")
    if expert_products(writer.job) != writer.job.precision.products:
        dtype = writer.job.precision.dtype
        reason = f"Megatron-LM multiplies experts in FP8 too; here they are small, and multiply in {dtype}"
        writer.say_otherwise(f"{FP8}.recipe", reason)
    if fp8.recipe == "delayed":
        for flag, (name, default) in _OF_DELAYED.items():
            if getattr(fp8, name) != default:
                writer.add("TRAINING", flag, getattr(fp8, name))


QUANTIZATION = (
    FlagGroup(
        {
            **dict.fromkeys((_FORMAT, _RECIPE, *_OF_DELAYED, _FORMAT_OF_FP4, _RECIPE_OF_FP4), 1),
            _ENDS: 0,
            **dict.fromkeys(_COUNTS, 1),
        },
        read_quantization,
        write_quantization,
        (FP8, FP4),
    ),
)
