"""How the optimizer's state that lies in the host's memory is updated: in blocks, which come to the GPU and go back."""

from __future__ import annotations

BLOCK_ELEMENTS = 1 << 23
"""Parameters whose state comes at a time: 32 MiB of each tensor of state in fp32, which a host gives page-locked
without rounding it up."""
BLOCKS_ON_DEVICE = 2
"""One is updated while the next one comes."""
