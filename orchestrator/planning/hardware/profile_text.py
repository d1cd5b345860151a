"""A GPU profile as it is written to a file."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.planning.hardware.profiles import GpuProfile

_HEAD = """\
# Fractions of its datasheet that a GPU reaches, written by `orchestrator calibrate`. This file has the GPU's name.
# Anything left out has the shipped value of the base.
"""


def profile_text(profile: GpuProfile) -> str:
    """YAML that reads back as the same profile."""
    data = profile.model_dump(mode="json", exclude_none=True)
    lines = [_HEAD.rstrip("\n")]
    for key, value in data.items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {_number(share)}" for name, share in value.items())] if value else []
        elif isinstance(value, list):
            lines += [f"{key}:", *(f"  - {json.dumps(item, ensure_ascii=False)}" for item in value)] if value else []
        else:
            lines.append(f"{key}: {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: Any) -> str:
    """Four digits are more than was measured. YAML takes 1e-05 for text, 1.0e-05 for a number; so does JSON's text."""
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False)
    text = f"{value:.4g}"
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{exponent}{power}"
