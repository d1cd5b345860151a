"""Numbers of GPUs, and how many would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.layouts import GIB, Laws
from support.refused import refused

from orchestrator.tuning.gpu_counts import enough, spread
from orchestrator.tuning.space import Space


@pytest.mark.parametrize(("gpus", "expected"), [(1, (1, 1)), (6, (1, 6)), (8, (1, 8)), (16, (2, 8)), (1024, (128, 8))])
def test_gpus_fill_machines(gpus: int, expected: tuple[int, int]) -> None:
    assert spread(gpus, 8) == expected


def test_gpus_that_fill_no_machine_are_refused_with_those_that_do() -> None:
    with refused("uneven_gpu_count", " 8 ", "8 or 16"):
        spread(12, 8)


@pytest.mark.parametrize(("total", "expected"), [(15, 2), (60, 8), (100, 16), (10**9, None)])
def test_the_smallest_number_of_gpus_that_would_do(
    space: Callable[..., Space], total: int, expected: int | None
) -> None:
    """The whole model, `total` GiB, is shared by the model-parallel ranks; a GPU has 10, of which 9.2 may be used."""
    laws = Laws(
        memory_bytes=10 * GIB,
        bytes_of=lambda job: total * GIB // job.parallelism.model_parallel_size,
        parts_of=lambda job: {"gemm": 1.0},
    )
    assert enough(space(gpus=1), laws, 8) == expected
