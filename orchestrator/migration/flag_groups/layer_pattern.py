"""Which layers a program builds, and a hybrid's pattern of them."""

from __future__ import annotations

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.blocks.flags import FlagGroup

_MAMBA_LAYERS = ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]
_HYBRID_LAYERS = (_MAMBA_LAYERS, ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"])
"""Megatron-LM's own layers of hybrids, under both names."""
PATTERN, NUM_LAYERS = "model.hybrid_override_pattern", "model.num_layers"
LAYERS = "runtime.layers"


def read_layer_spec(given: GivenFlags) -> None:
    """Which layers a program builds: of a Mamba Megatron-LM's own ones, which it asks for by name."""
    if not given.has("spec"):
        return
    if given.family.trains.is_hybrid and given.words("spec") in _HYBRID_LAYERS:
        given.no_effect("spec", "architecture: mamba has these layers")
    elif given.family.trains.is_masked_lm and given.words("spec") == ["local"]:
        given.carry("spec", LAYERS, "torch")
    elif given.family.trains.is_encoder_decoder:
        given.no_effect("spec", "Megatron-LM's T5 has the layers that --transformer-impl names")
    else:
        given.another_training("spec", "custom layers are not in this version")


def write_layer_spec(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.family.is_hybrid:
        writer.add("MODEL", "spec", *_MAMBA_LAYERS)
    elif model.family.is_masked_lm and writer.job.runtime.layers == "torch":
        writer.add("MODEL", "spec", "local")  # the trainer of BERT does not read --transformer-impl


def read_pattern(given: GivenFlags) -> None:
    """A letter for each layer: they say how many there are. Newer releases also cut the pipeline, at each `|`."""
    name = "hybrid-override-pattern"
    if not given.has(name):
        return
    text = given.text(name)
    if not given.family.trains.is_hybrid:
        _read_pattern_of_another(given, name, text)
        return
    if text is None:
        given.write_it(name, PATTERN)
        return
    if "/" in text:
        given.refuse_value(name, PATTERN, "multi-token prediction, after the /, is not in this version")
        return
    pattern = text.replace("|", "")
    if pattern != text:
        given.migration.notes.append(f"{given.flags[name].shown}: layers are distributed evenly, not split at each |")
    given.carry(name, PATTERN, pattern)
    if given.get(NUM_LAYERS) != len(pattern):
        if given.has("num-layers"):
            given.overrule("num-layers", f"{given.flags[name].shown} says how many")
        given.put(NUM_LAYERS, len(pattern), f"{given.flags[name].shown} names so many")


def _read_pattern_of_another(given: GivenFlags, name: str, text: str | None) -> None:
    """core_v0.16.1's GPT takes no notice of it; releases with its newer name count the layers by it all the same."""
    shown = given.flags[name].shown
    layers = (text or "").partition("/")[0].replace("|", "")
    if layers and shown.startswith("--hybrid-layer-pattern") and given.get(NUM_LAYERS) != len(layers):
        if given.has("num-layers"):
            given.overrule("num-layers", f"{shown} says how many")
        given.carry(name, NUM_LAYERS, len(layers))
    else:
        given.no_effect(name, f"Megatron-LM's {given.family.name} has no such pattern")
    given.migration.notes.append(
        f"{shown}: its program trains a {given.family.name}, and no hybrid; for a hybrid, model.architecture=mamba and "
        f"{PATTERN}={layers or 'PATTERN'} (--set)"
    )


def write_pattern(writer: FlagWriter) -> None:
    pattern = writer.job.model.hybrid_override_pattern
    if pattern is not None:
        writer.add("MODEL", "hybrid-override-pattern", pattern)


LAYER_PATTERN = (
    FlagGroup({"spec": None}, read_layer_spec, write_layer_spec, ()),
    FlagGroup({"hybrid-override-pattern": 1}, read_pattern, write_pattern, (PATTERN,)),
)
