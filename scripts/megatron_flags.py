"""Record which flags Megatron-LM's argument parser has, each with its choices, for the tests of the table of flags.

    PYTHONPATH=CHECKOUT python scripts/megatron_flags.py CHECKOUT > flags.txt

CHECKOUT is Megatron-LM at a tag, core_v0.16.1 say; tests/unit/migration/parser_flags.txt has what came of it. Triton,
which a checkout imports and no CPU needs, is stood in for.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import sys
import types
import typing
from typing import Any

import torch._inductor.compile_fx  # it looks for Triton by itself, and is not to find ours
import typing_extensions


class Stub(types.ModuleType):
    """A module that has everything, as far as decorators and annotations ask."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "3.6.0"
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self.__name__}.{name}")

    def __call__(self, *given: Any, **options: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not isinstance(given[0], Stub) else self


def parser_flags(checkout: str) -> dict[str, list[str]]:
    """All flags of a checkout's parser, without dashes in front, with dashes inside, and the values that each takes
    where it says so.
    """
    sys.path.insert(0, checkout)
    vars(typing).setdefault("override", typing_extensions.override)  # 0.19 is written for Python 3.12
    vars(torch)["compile"] = lambda model=None, **options: model or (lambda other: other)
    modules: dict[str, Any] = sys.modules
    for name in ("triton", "triton.language"):
        stub = Stub(name)
        stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
        stub.__path__ = []
        modules.setdefault(name, stub)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("megatron.training.arguments").add_megatron_arguments(parser)
    flags = {
        word[2:].replace("_", "-"): [getattr(choice, "name", str(choice)) for choice in action.choices or ()]
        for action in parser._actions
        for word in action.option_strings
        if word.startswith("--")
    }
    del flags["help"]
    return flags


if __name__ == "__main__":
    for flag, choices in sorted(parser_flags(sys.argv[1]).items()):
        sys.stdout.write(f"{flag}={','.join(choices)}\n")
