"""What is read of Transformer Engine's extra states, where it is there."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from orchestrator.errors import CheckpointError
from orchestrator.runtime.checkpointing import checkpoint_reader

NO_PICKLE = torch.tensor([1, 2, 3], dtype=torch.uint8)


@pytest.mark.parametrize(("engine", "is_read"), [(ModuleType("transformer_engine"), False), (None, True)])
def test_only_an_engine_that_loads_unpickles_them(
    engine: ModuleType | None, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not load is None among the modules."""
    modules: dict[str, Any] = sys.modules
    monkeypatch.setitem(modules, "transformer_engine", engine)
    monkeypatch.setattr(checkpoint_reader, "shared", lambda path: None)
    found: dict[str, Any] = {"layers._extra_state": NO_PICKLE}
    monkeypatch.setattr(checkpoint_reader.dist_checkpointing, "load", lambda wanted, path, **options: found)
    if is_read:
        assert checkpoint_reader.load({}, tmp_path) == found
    else:
        with pytest.raises(CheckpointError):
            checkpoint_reader.load({}, tmp_path)
