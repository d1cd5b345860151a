"""How Adam's moments in 16 bits are updated: in rounds, each brought to fp32 and back."""

from __future__ import annotations

ROUND_ELEMENTS = 1 << 24
"""Of the parameters that are updated at a time."""
