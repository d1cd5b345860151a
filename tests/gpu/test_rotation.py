"""Queries and keys are rotated in one kernel as megatron-core's operations rotate them, and their gradients back."""

from __future__ import annotations

import pytest
import torch
from support.gpu_clock import fastest, memory_bandwidth
from support.measured import needs_gpus
from support.rotated import rotated_by_operations

from orchestrator.runtime.layers.attention.rotation import rotated

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LEAST_SHARE = 0.62
"""Of the bandwidth in the datasheet: an H200 reaches 0.87."""

SHAPES = {
    "as many groups as heads": (33, 2, 16, 3, 128, 128),
    "one sequence": (70, 1, 5, 3, 64, 64),
    "grouped": (33, 3, 4, 8, 128, 128),
    "one group": (20, 2, 1, 34, 64, 64),
    "a part of a head": (17, 2, 3, 6, 80, 40),
    "an odd head": (9, 1, 20, 3, 36, 18),
}
PATCHES = (5, 2, 16, 3, 80, 80)
"""The heads of an encoder of images."""


@pytest.mark.parametrize("apart", [False, True], ids=["in place", "apart"])
@pytest.mark.parametrize("differ", [False, True], ids=["angles of all", "angles of each sequence"])
@pytest.mark.parametrize("shape", [*SHAPES.values(), PATCHES], ids=[*SHAPES, "patches"])
def test_it_is_what_operations_do(shape: tuple[int, ...], differ: bool, apart: bool) -> None:
    needs_gpus(1, "torch")
    s, b, groups, members, d, width = shape
    if members > 3 and not apart:
        apart = True
    torch.manual_seed(1)
    projected = torch.randn(s, b, groups, members, d, device="cuda", dtype=torch.bfloat16)
    angles = 3e4 * torch.rand(s, b if differ else 1, 1, width // 2, device="cuda")
    frequencies = torch.cat((angles, angles), -1)
    upstream = [torch.randn(s, b, heads, d, device="cuda") for heads in (groups * (members - 2), groups, groups)]
    for joined in (False, True):
        results = []
        for ours in (False, True):
            source = projected.clone().requires_grad_()
            inner = source * 1
            found = rotated(inner, frequencies, apart=apart) if ours else rotated_by_operations(inner, frequencies)
            gradients = [each.bfloat16() for each in upstream]
            if joined and members == 3:  # as an attention returns them
                gradients = list(torch.stack(gradients, -2).unbind(-2))
            torch.autograd.backward(found, gradients)
            assert source.grad is not None
            results.append([*(each.detach().clone() for each in found), source.grad])
        for wanted, got in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted, rtol=8e-3, atol=1e-3)


def test_memory_is_passed_over_once() -> None:
    needs_gpus(1, "torch")
    projected = torch.randn(4096, 4, 16, 3, 128, device="cuda", dtype=torch.bfloat16)
    angles = torch.rand(4096, 1, 1, 64, device="cuda")
    frequencies = torch.cat((angles, angles), -1)
    for apart, moved in ((False, 8 / 3), (True, 4)):  # queries and keys alone, or values too; read and written
        seconds = fastest(lambda apart=apart: rotated(projected, frequencies, apart=apart), each=20)
        rate = moved * projected.numel() / seconds
        print(f"\nRESULT rotation {'apart' if apart else 'in place'}: {seconds * 1e3:.3f} ms, {rate / 1e12:.2f} TB/s")
        assert rate > LEAST_SHARE * memory_bandwidth()
