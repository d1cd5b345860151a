"""State space layers that go on from a cache: what they give is what a pass over the whole text gives."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from support import mamba_stub

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.inference.generation.cache import Cache
from orchestrator.models.blocks.state_space.layers import PIECE, go_on

HEADS, CHANNELS, GROUPS, STATE = 4, 3, 2, 5
WIDTH, CONVOLVED = HEADS * CHANNELS, HEADS * CHANNELS + 2 * GROUPS * STATE


def test_rows_go_on_behind_their_own_prompts() -> None:
    """One is longer than a piece of the scan, and one shorter than the convolution; then the rows change places."""
    torch.manual_seed(1)
    lengths, longest = [PIECE + 6, 2], PIECE + 9
    mixer = SimpleNamespace(
        **{"d_inner_local_tp": WIDTH, "ngroups_local_tp": GROUPS, "d_state": STATE, "nheads_local_tp": HEADS},
        **{"headdim": CHANNELS, "dt_bias": torch.randn(HEADS), "A_log": torch.randn(HEADS), "D": torch.randn(HEADS)},
        conv1d=SimpleNamespace(weight=torch.randn(CONVOLVED, 1, 4), bias=torch.randn(CONVOLVED)),
        norm=lambda x: x,
    )
    projected = torch.randn(longest, 2, WIDTH + CONVOLVED + HEADS)
    expected = mamba_stub.scan(
        projected.transpose(0, 1),
        *(mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias, mixer.dt_bias, -mixer.A_log.exp()),
        **{"D": mixer.D, "headdim": CHANNELS, "ngroups": GROUPS},
    )
    cache = Cache(longest)
    cache.begin(None, None, torch.tensor(lengths))
    found = go_on(mixer, projected[: lengths[0]], cache, 0)
    for row, length in enumerate(lengths):
        assert torch.allclose(found[:length, row], expected[row, :length], atol=1e-4)
    rows, places = torch.tensor([1, 0]), torch.tensor([lengths[1], lengths[0]])
    cache.take(rows)
    for _ in range(3):
        cache.begin(places[:, None], None)
        [step] = go_on(mixer, projected[places, rows][None], cache, 0)
        assert torch.allclose(step, expected[rows, places], atol=1e-4)
        places = places + 1
    assert cache.allocations == 2, "what is kept lies where it did"
