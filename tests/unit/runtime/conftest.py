"""Ranks for tests.

What needs the CPU shim runs in a program of its own: the shim changes torch for the whole process. Everything else is
tested in this process, on the torch that is installed.
"""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.fixtures import inject
from support.this_machine import Libraries, libraries

from orchestrator.runtime.triton_kernels.loading import kernels

__all__ = ["inject", "libraries"]

HERE = Path(__file__).parent
RunRanks = Callable[[str, int], list[Any]]
PutKernels = Callable[[str, object], None]


@pytest.fixture
def put_kernels(libraries: Libraries, monkeypatch: pytest.MonkeyPatch) -> Iterator[PutKernels]:
    """put_kernels(module, operations): what computes in place of a module of kernels, which are compiled for a GPU."""
    libraries.there("triton")

    def put(module: str, operations: object) -> None:
        monkeypatch.setitem(vars(sys)["modules"], f"orchestrator.runtime.triton_kernels.{module}", operations)
        kernels.cache_clear()

    yield put
    kernels.cache_clear()


@pytest.fixture(scope="session")
def run_ranks(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """`run_ranks(function, count)`: a function of rank_program.py on so many ranks; what each returned."""

    def call(function: str, count: int) -> list[Any]:
        out = tmp_path_factory.mktemp(function)
        first = out / "first.py"
        first.write_text(f"import sys\nsys.path.insert(0, {str(HERE.parents[1])!r})\n")
        program = HERE / "rank_program.py"
        started = ranks.starter.start(out, count, function, program=program, inject=first)
        assert started.wait() == 0, ranks.starter.said()
        return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(count)]

    return call
