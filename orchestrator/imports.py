"""Importing large libraries, and what else makes many objects, without what nobody needs of it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_PLUGINS = "pydantic.plugin._loader"
_WITHOUT_PLUGINS = threading.RLock()
"""One thread after the other: the second would take the stand-in of the first for the module, and put that back."""


@contextmanager
def staying() -> Iterator[None]:
    """What is imported or made inside stays until the process ends, and is never looked through for garbage.

    torch and megatron-core make half a million objects: to search them again and again while they are made, and to
    take them apart one by one at the end, is a third of the CPU time of a rank that trains a few steps. Of the tuner's
    thousands of layouts it is a tenth.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def without_pydantic_plugins() -> Iterator[None]:
    """Pydantic's models that are made inside have no plugins: to import what looks for some in all that is installed
    takes as long as to make thirty models. Models that are made afterwards may have plugins.
    """
    with _WITHOUT_PLUGINS:
        loaded = sys.modules.get(_PLUGINS)
        none: Any = ModuleType(_PLUGINS)
        none.get_plugins = lambda: ()
        sys.modules[_PLUGINS] = none
        try:
            yield
        finally:
            if loaded is None:
                del sys.modules[_PLUGINS]
            else:
                sys.modules[_PLUGINS] = loaded


@contextmanager
def without(*names: str) -> Iterator[None]:
    """As if these modules were not installed, for libraries that import them where they can and do without elsewhere.

    One that is imported already stays as it is. Afterwards each can be imported as ever.
    """
    hidden = [name for name in names if name not in sys.modules]
    refusals: dict[str, Any] = dict.fromkeys(hidden)  # by the language's reference, None there refuses the import
    sys.modules.update(refusals)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
