"""Flags of the norm of queries and keys that has no weights."""

from __future__ import annotations

import pytest
import torch
from megatron.core.transformer.torch_norm import L2Norm
from torch.nn.functional import rms_norm
from unit.migration.conftest import Flags

from orchestrator.migration.to_megatron import to_megatron

ROTATED = ["--position-embedding-type", "rope", "--qk-l2-norm"]
LOCAL = ["--transformer-impl", "local"]


@pytest.mark.parametrize("further", [[], [*LOCAL, "--num-experts", "4", "--disable-bias-linear"]])
def test_where_all_layers_rotate_it_is_the_field(flags: Flags, further: list[str]) -> None:
    migrated = flags(*ROTATED, "--qk-layernorm", *further)
    assert (migrated.job.model.qk_l2_norm, migrated.job.model.qk_layernorm) == (True, False)
    written = to_megatron(migrated.job)
    assert "--qk-l2-norm" in written.words
    assert not [each for each in (*written.unsaid, *written.otherwise) if "norm" in each.path]


def test_where_some_do_not_rotate_megatron_normalises_them_too(flags: Flags) -> None:
    migrated = flags(*ROTATED, "--no-rope-freq", "2")
    assert migrated.migration.missing.keys() == {"model.qk_l2_norm"}
    assert "without rotary positions too" in migrated.reason("--qk-l2-norm")
    some = flags(*ROTATED).job.changed(model={"no_rope_freq": 2})
    assert "--qk-l2-norm" not in to_megatron(some).words
    assert [each.path for each in to_megatron(some).unsaid if "norm" in each.path] == ["model.qk_l2_norm"]


def test_layers_that_have_it(flags: Flags) -> None:
    """Megatron-LM's builder does not hand the flag to the dense layers of --transformer-impl local."""
    assert flags(*ROTATED, *LOCAL).outcome("--qk-l2-norm") == "no_effect"
    written = to_megatron(flags(*ROTATED).job.changed(runtime={"layers": "torch"}))
    assert "--qk-l2-norm" in written.words
    assert "--transformer-impl" not in written.words
    assert "runtime.layers" in [each.path for each in written.otherwise]


def test_the_norm_is_that_of_megatron_core() -> None:
    heads = torch.randn(6, 2, 8)
    torch.testing.assert_close(L2Norm(8, eps=1e-2)(heads), rms_norm(heads, (8,), None, 1e-2))
