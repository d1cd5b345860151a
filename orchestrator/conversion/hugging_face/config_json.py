"""config.json and the `model` section, one from the other, by a family's table. Needs no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import (
    QUANTIZATION,
    check_keys,
    check_quantization,
    names_of,
    no_network,
    short,
    value_of,
    whole,
)
from orchestrator.conversion.hugging_face.layer_types import INTERVALS, TYPES, layer_types, windows
from orchestrator.conversion.hugging_face.rotary import (
    ROTARY_KEYS,
    rotary_keys_of,
    to_rotary_fields,
    to_rotary_keys,
)
from orchestrator.conversion.weight_mapping import Family, ImageConfig, only
from orchestrator.errors import SpecError, UserError
from orchestrator.models.blocks.state_space.parameters import state_space_heads
from orchestrator.spec.model import ModelSpec

_WINDOW = "sliding_window"
_KEYS: Mapping[str, tuple[str, ...]] = {
    **ROTARY_KEYS,
    **{"window_attn_skip_freq": (TYPES, *INTERVALS), "vocab_size": ("vocab_size",)},
    "untie_embeddings_and_output_weights": ("tie_word_embeddings",),
}
"""Field of `model` -> keys of config.json that it comes from in any family that has them."""
_LONGEST_SAMPLE = 4096
"""Training samples of an imported model are no longer than this unless its owner says so."""
MOST_LAYERS = 10_000
"""What a layer is may be listed one by one."""


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json. Raises UserError when it is none."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} has no config.json: it is not the folder of a Hugging Face model", code="missing_config"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}", code="unreadable_config") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object", code="not_a_json_object")
    return config


def to_config(model: ModelSpec, family: Family, vocab_size: int) -> dict[str, Any]:
    """What config.json says of a model that is of this family."""
    if family.decoder is not None and family.images is not None:
        return _to_seeing_config(model, family, family.images, to_config(model, family.decoder, vocab_size))
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": vocab_size,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        **family.constants,
        **family.written,
    }
    resolved = {
        "num_layers": model.encoder_layers,
        "decoder_num_layers": model.decoder_layers,
        "num_tokentypes": model.tokentypes,
        "num_query_groups": model.query_groups,
        "kv_channels": model.head_dim,
        "ffn_hidden_size": model.moe_ffn_size if model.has_experts else model.ffn_size,
        "moe_aux_loss_coeff": next(iter(model.auxiliary_losses.values()), 0.0),
        "softmax_scale": model.scale_of_scores,
        "mamba_num_heads": state_space_heads(model),
    }
    for field, key in family.sizes.items():
        config[key] = resolved.get(field, getattr(model, field))
    for each in family.derived:
        config |= each.to_keys(model) or {}
    if family.global_interval is not None:
        config[TYPES] = layer_types(model)
    if TYPES in config and model.sliding_window is None and _WINDOW in config:
        config[_WINDOW] = family.defaults[_WINDOW]  # which no layer has, and transformers asks for all the same
    if family.positions is not None:
        config[family.positions] = model.positions
    if family.rotary:
        config |= to_rotary_keys(model, family)
    config[family.activation_key] = family.activations[model.activation][0]
    return config | {key: config[source] for key, source in family.repeated.items()}


def to_model(config: Mapping[str, Any], family: Family, place: str = "") -> dict[str, Any]:
    """The `model` section of a config.json of this family, or of a part of one, named by `place` (` of text_config`).
    Raises UserError with what we cannot represent, and with every key that is not known to change nothing.
    """
    _refuse_others(config, family, place)
    text, decoder, inside = _of_decoder(config, family)
    model = _to_text_model(config, family, place) if decoder is family else to_model(text, decoder, inside)
    if family.images is not None:
        model |= {"vision": family.images.to_vision(config)}
    check_keys(config, keys_read(family) | family.ignored, family.name, place)
    return model


def _to_text_model(config: Mapping[str, Any], family: Family, place: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"architecture": family.fixed["architecture"]}
    for field, key in family.sizes.items():
        value = value_of(config, key, family)
        # Weights that are there need no other: no spread at all is for networks that start from zeros.
        if value is not None and not (field == "init_method_std" and value == 0):
            fields[field] = value
    for field in ("num_layers", "hidden_size", "num_attention_heads"):
        if field in family.sizes and field not in fields:
            raise UserError(f"config.json has no {family.sizes[field]}", code="missing_config_key")
    if "num_layers" in fields and whole(fields["num_layers"], family.sizes["num_layers"]) > MOST_LAYERS:
        raise no_network(family.sizes["num_layers"], fields["num_layers"])
    for each in family.derived:
        fields |= each.to_fields(lambda key: value_of(config, key, family), fields)
    if family.rotary and fields.get("ffn_hidden_size") is None:
        raise UserError("config.json has no intermediate_size", code="missing_config_key")
    fields |= {
        **family.imported,
        **(_lengths(config, family.positions, family) if family.positions is not None else {}),
        "vocab_size": _whole(value_of(config, "vocab_size", family), "vocab_size"),
        "activation": _activation(config, family, place),
        "untie_embeddings_and_output_weights": not value_of(config, "tie_word_embeddings", family),
        **{field: only(value) for field, value in family.fixed.items() if only(value) is not None},
    }
    if family.rotary:
        fields |= to_rotary_fields(config, family, place)
        window = fields.get("sliding_window")
        if family.global_interval is not None:
            fields |= windows(config, fields["num_layers"], window, family.global_interval, place)
        elif not any(TYPES in each.keys for each in family.derived):
            _refuse_mixed_layers(config, window is not None, place)
        if fields.get("sliding_window") is None:
            fields["rotary_base_local"] = None
    if (scaling := fields.get("rope_scaling", {})).get("type") == "longrope":  # beyond, texts are written otherwise
        fields["seq_length"] = min(fields["seq_length"], scaling["original_max_position_embeddings"])
    if offset := fields.get("position_embedding_offset"):
        fields["seq_length"] = min(fields["seq_length"], fields["max_position_embeddings"] - offset)
    known = ModelSpec.model_fields
    return {
        field: value for field, value in fields.items() if known[field].is_required() or value != known[field].default
    }


def in_their_words(error: SpecError, config: Mapping[str, Any], family: Family) -> UserError:
    """An error of a job made of a config.json of this family, by keys there; itself where a field came from none."""
    config, family, place = _of_decoder(config, family)
    said = []
    for problem in error.problems:
        keys = {
            name: None
            for path in problem.paths
            for key in _keys_of(path.removeprefix("model.").partition(".")[0], family)
            for name in names_of(key, family)
            if config.get(name) is not None
        }
        if not keys:
            return error
        values = " and ".join(f"{key}{place} is {short(config[key])}" for key in keys)
        why = re.sub(r"\w+", lambda word: next(_keys_of(word[0], family), word[0]), problem.message)
        said.append(f"config.json: {values}, which this version does not support: {why}")
    return UserError("\n".join(dict.fromkeys(said)), code="unsupported_config_value")


def _keys_of(field: str, family: Family) -> Iterator[str]:
    """Where config.json says what a field of `model` is."""
    if field in family.sizes:
        yield family.sizes[field]
    yield from (key for each in family.derived if field in each.fields for key in each.keys)
    of_family = {"activation": family.activation_key, "max_position_embeddings": family.positions}.get(field)
    yield from _KEYS.get(field, () if of_family is None else (of_family,))


def import_notes(config: Mapping[str, Any], family: Family) -> Iterator[str]:
    """What to tell a person of a config.json: of what is left out, and of values that it has apart and that are one
    field here: dropouts, which change no weight and no answer, and the training that goes on.
    """
    part = family.text_part
    if part is not None and config.get(part.left_out) is not None:
        yield f"config.json: {part.left_out} is left out: of {family.name} the decoder of text is imported"
    fields = {key: field for field, key in family.sizes.items()}
    for key, of in family.repeated.items():
        if of not in fields or key in family.aliases:
            continue  # of one meaning: where they contradict each other they are refused
        default = family.defaults[of]
        apart, taken = config.get(key, default), config.get(of, default)
        if apart != taken:
            field = f"model.{fields[of]}"
            yield (
                f"config.json: {key} is {short(apart)} and {of} is {short(taken)}, and both are {field} here, which is "
                f"{short(value_of(config, of, family))}: write another one there to train with it"
            )


def keys_read(family: Family) -> set[str]:
    """The keys of config.json that an import of this family understands."""
    if family.text_part is not None:
        return {*family.text_part.keys, family.text_part.left_out}
    if family.images is not None:
        return {*family.images.keys, *family.constants}
    return {
        *(*family.sizes.values(), *family.constants, *family.repeated, *family.aliases, *family.implied),
        *(key for each in family.derived for key in each.keys),
        *("vocab_size", "tie_word_embeddings", family.activation_key),
        *((family.positions,) if family.positions is not None else ()),
        *(rotary_keys_of(family) if family.rotary else ()),
        *(INTERVALS if family.global_interval is not None else ()),
        *((QUANTIZATION,) if family.quantizations else ()),
    }


def _to_seeing_config(model: ModelSpec, family: Family, images: ImageConfig, text: Mapping[str, Any]) -> dict[str, Any]:
    """From `text`, what it says of the decoder."""
    names = {"architectures": [family.architecture], "model_type": family.model_type}
    return {**images.to_config(model, text), **family.constants, **names}


def _of_decoder(config: Mapping[str, Any], family: Family) -> tuple[Mapping[str, Any], Family, str]:
    """What a config.json says of the decoder, the family by whose table it is read, and in words where it stands."""
    if family.decoder is not None and family.text_part is not None:
        return family.text_part.to_text(config), family.decoder, " of text_config"
    if family.decoder is not None and family.images is not None:
        return family.images.to_text(config), family.decoder, " of text_config" if family.images.nests else ""
    return config, family, ""


def _lengths(config: Mapping[str, Any], key: str, family: Family) -> dict[str, int]:
    given = value_of(config, key, family)
    positions = _whole(family.defaults[key] if given is None else given, "the number of positions")
    return {"seq_length": min(positions, _LONGEST_SAMPLE), "max_position_embeddings": positions}


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise UserError(
            f"config.json: {what} must be a whole number above 0, and is {json.dumps(value)}",
            code="config_value_not_positive",
        )
    return value


def to_dtype(config: Mapping[str, Any]) -> str:
    """The format in which a model computes, in our words: as it is stored, else bf16."""
    stored = config.get("dtype") or config.get("torch_dtype")
    return {"float32": "fp32", "float16": "fp16"}.get(str(stored).removeprefix("torch."), "bf16")


def _refuse_others(config: Mapping[str, Any], family: Family, place: str) -> None:
    check_quantization(config, family.quantizations, place)
    for key, wanted in family.constants.items():
        value = config.get(key, family.defaults.get(key, wanted))
        yes_or_no = wanted is None or isinstance(wanted, bool)
        if bool(value) != bool(wanted) if yes_or_no else value != wanted:
            raise no_network(f"{key}{place}", value)
    for alias, key in family.aliases.items():
        both = [config[name] for name in (alias, key) if config.get(name) is not None]
        if len(both) == 2 and both[0] != both[1]:
            said = " and ".join(map(json.dumps, both))
            raise UserError(
                f"config.json: {alias} and {key}{place} are the same, and say {said}: remove one",
                code="conflicting_config_values",
            )


def _refuse_mixed_layers(config: Mapping[str, Any], windowed: bool, place: str) -> None:
    """Every layer attends alike here: within the window, where there is one."""
    kind = "sliding_attention" if windowed else "full_attention"
    layers = config.get("layer_types")
    if layers is not None and (not isinstance(layers, list) or any(each != kind for each in layers)):
        raise UserError(
            f"config.json: layer_types{place} is {short(layers)}, which this version does not support: only models "
            f"can be "
            f"imported whose layers are all {kind} where sliding_window is {'set' if windowed else 'not'}",
            code="unsupported_layer_types",
        )


def _activation(config: Mapping[str, Any], family: Family, place: str) -> str:
    """What each key that names it says: versions of transformers read one or another."""
    keys = (family.activation_key, *(key for key, of in family.repeated.items() if of == family.activation_key))
    default = family.defaults.get(family.activation_key, next(iter(family.activations.values()))[0])
    named = {key: config[key] for key in keys if config.get(key)} or {family.activation_key: default}
    ours = [_our_activation(value, key, family, place) for key, value in named.items()]
    name = next(iter(named.values()))
    for key, values in family.implied.items():
        if key in config and config[key] != values[name]:
            raise no_network(f"{key}{place}", config[key])
    return ours[0]


def _our_activation(value: Any, key: str, family: Family, place: str) -> str:
    for ours, theirs in family.activations.items():
        if value in theirs:
            return ours
    known = ", ".join(name for theirs in family.activations.values() for name in theirs)
    raise UserError(
        f"config.json: {key}{place} is {value!r}; {family.name} is imported with {known}",
        code="unsupported_config_value",
    )
