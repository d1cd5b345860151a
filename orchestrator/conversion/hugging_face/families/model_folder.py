"""Which family the model in a folder is of. The registry reads no folders: whoever checks a job imports it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.conversion.hugging_face.config_json import read_config
from orchestrator.conversion.hugging_face.config_keys import section
from orchestrator.conversion.hugging_face.families.registry import families, family_of_type
from orchestrator.conversion.tensors.names import names_in
from orchestrator.conversion.weight_mapping import Family
from orchestrator.errors import UserError


def family_of_folder(folder: Path) -> Family:
    """The family of a Hugging Face model, by its config.json and the names of its weights. Raises UserError."""
    names, config = names_in(folder), read_config(folder)
    family = family_of_type(config.get("model_type"), names)
    return _with_decoder(config, family) if family.images is not None and family.images.nests else family


def _with_decoder(config: Mapping[str, Any], family: Family) -> Family:
    """Of the families of one `model_type` that see images the one whose decoder a config.json describes."""
    decoders = {
        each.decoder.model_type: each
        for each in families()
        if each.model_type == family.model_type and each.decoder is not None
    }
    kind = section(config, "text_config").get("model_type", next(iter(decoders)))
    if kind not in decoders:
        known = ", ".join(decoders)
        raise UserError(
            f"config.json: text_config is a {kind}; {family.model_type} is imported with {known}",
            code="unsupported_text_model",
        )
    return decoders[kind]
