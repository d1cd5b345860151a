"""Which libraries of kernels can be used: fla refuses Triton versions that compile it wrongly for Hopper."""

from __future__ import annotations

import pytest
from support.this_machine import Libraries, libraries

from orchestrator.models.blocks.gated_delta_net.libraries import fla_trouble

__all__ = ["libraries"]

HOPPER, AMPERE, BLACKWELL = (9, 0), (8, 0), (10, 0)


def test_what_is_not_installed_is_no_help(libraries: Libraries) -> None:
    libraries.missing("fla")
    assert fla_trouble(AMPERE) is not None


@pytest.mark.parametrize(
    ("capability", "triton", "is_used"),
    [
        (HOPPER, "3.3.1", True),
        (HOPPER, "3.4.0", False),
        (HOPPER, "3.6.0", False),
        (HOPPER, "3.7.0+git1", False),
        (HOPPER, "3.7.1", True),
        (AMPERE, "3.6.0", True),
        (BLACKWELL, "3.6.0", True),
    ],
)
def test_triton_compiles_it_wrongly_for_hopper(
    capability: tuple[int, int], triton: str, is_used: bool, libraries: Libraries
) -> None:
    libraries.missing("tilelang")
    libraries.there("fla")
    libraries.distribution("triton", triton, "triton")
    assert (fla_trouble(capability) is None) is is_used


def test_tilelang_takes_its_place(libraries: Libraries) -> None:
    libraries.there("fla", "tilelang")
    libraries.distribution("triton", "3.6.0", "triton")
    assert fla_trouble(HOPPER) is None
