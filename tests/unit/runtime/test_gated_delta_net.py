"""Gated delta nets against transformers' recurrence, and their states against a pass over the whole text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.inference.generation.cache import Cache
from orchestrator.models.blocks.gated_delta_net.delta_rule import Inputs, chunked_delta_rule
from orchestrator.models.blocks.gated_delta_net.layers import GatedDeltaNet, Submodules, text_borders
from orchestrator.runtime.layers.attention.scores import packed_mask

CONFIG = SimpleNamespace(
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5},
    **{"linear_conv_kernel_dim": 3, "hidden_size": 16, "params_dtype": torch.float32, "layernorm_epsilon": 1e-6},
    **{"init_method": None, "output_layer_init_method": None},
)


class Linear(torch.nn.Linear):
    """In place of megatron-core's."""

    def __init__(self, inputs: int, outputs: int, **unused: Any) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), None


@pytest.fixture
def layer() -> GatedDeltaNet:
    torch.manual_seed(1)
    one = SimpleNamespace(size=lambda: 1)
    group = SimpleNamespace(tp=one, cp=one)
    made = GatedDeltaNet(CONFIG, Submodules(Linear, Linear), 1, group)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("keys", ["random", "one"])
@pytest.mark.parametrize(("length", "chunk"), [(11, 4), (8, 8), (3, 64)])
def test_chunks_give_what_the_recurrence_gives(length: int, chunk: int, keys: str) -> None:
    """And its gradients; also of keys that are all one, which nearly cancel in what each token writes."""
    torch.manual_seed(2)
    query, key = (torch.nn.functional.normalize(torch.randn(2, length, 3, 6), dim=-1) for _ in range(2))
    value, decay, beta = torch.randn(2, length, 3, 5), -torch.rand(2, length, 3), torch.rand(2, length, 3)
    if keys == "one":
        key, decay, beta = key[:, :1].expand_as(key), 1e-3 * decay, torch.full_like(beta, 0.999)
    before = torch.randn(2, 3, 6, 5)
    given = [each.clone().requires_grad_() for each in (query, key, value, decay, beta, before)]
    ours = chunked_delta_rule(Inputs(*given[:5]), given[5], chunk)
    theirs = torch_recurrent_gated_delta_rule(
        *given[:3], g=given[3], beta=given[4], initial_state=given[5], output_final_state=True
    )
    weights = [torch.randn_like(each) for each in ours]
    gradients = [torch.autograd.grad(list(each), given, weights) for each in (ours, theirs)]
    for mine, other in zip((*ours, *gradients[0]), (*theirs, *gradients[1]), strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


def test_rows_of_any_length_go_on_from_their_states(layer: GatedDeltaNet) -> None:
    """A prompt shorter than the convolution, and one that is filled up, after beams have changed places."""
    lengths, whole = torch.tensor([7, 2]), torch.randn(10, 2, 16)
    with torch.no_grad():
        expected = [layer(whole[:, row : row + 1], None)[0] for row in (0, 1)]
        layer.cache = Cache(16)
        layer.cache.begin(None, None, lengths)
        first, _ = layer(whole[:7], None)
        layer.cache.take(torch.tensor([1, 0]))
        found = []
        for step in range(3):
            layer.cache.begin((lengths.flip(0) + step)[:, None], None)
            tokens = torch.stack([whole[2 + step, 1], whole[7 + step, 0]])
            found.append(layer(tokens[None], None)[0][0])
    for row, length in enumerate(lengths):
        assert torch.allclose(first[:length, row], expected[row][:length, 0], atol=1e-5)
        steps = torch.stack(found)[:, 1 - row]
        assert torch.allclose(steps, expected[row][length : length + 3, 0], atol=1e-5)


def test_gradients_are_those_of_a_pass_that_keeps_everything(layer: GatedDeltaNet) -> None:
    hidden, wanted = torch.randn(9, 2, 16, requires_grad=True), [*layer.parameters()]
    out, _ = layer(hidden, None)
    ours = torch.autograd.grad(out.square().sum(), [hidden, *wanted])
    projected, _ = layer.in_proj(hidden)
    weights = (layer.conv1d.weight, layer.A_log, layer.dt_bias, layer.out_norm.weight)
    kept, _ = layer.out_proj(layer._mixed(None, projected, *weights))
    for mine, other in zip(ours, torch.autograd.grad(kept.square().sum(), [hidden, *wanted]), strict=True):
        assert torch.allclose(mine, other, atol=1e-5 * other.abs().max().item())
        assert mine.abs().max() > 0


def test_texts_of_a_sequence_are_as_alone(layer: GatedDeltaNet) -> None:
    """Outputs, and gradients of inputs and weights: of texts shorter than the convolution, of some longer than a chunk,
    and of one that ends where a chunk does.
    """
    lengths = [[1, 70, 57, 2], [64, 66]]
    hidden, wanted = torch.randn(130, 2, 16, requires_grad=True), [*layer.parameters()]
    segments = torch.tensor([[n for n, length in enumerate(row) for _ in range(length)] for row in lengths])
    out, _ = layer(hidden, packed_mask(segments, torch.float32))
    alone = [
        torch.cat([layer(text[:, None], None)[0] for text in torch.split(hidden[:, row], lengths[row])])
        for row in (0, 1)
    ]
    expected, weight = torch.cat(alone, dim=1), torch.randn(130, 2, 16)
    assert torch.allclose(out, expected, atol=1e-5 * expected.abs().max().item())
    whole, _ = layer(hidden, None)
    assert not torch.allclose(out, whole, atol=1e-2), "what is before a text would change it"
    gradients = (torch.autograd.grad((each * weight).sum(), [hidden, *wanted]) for each in (out, expected))
    for mine, other in zip(*gradients, strict=True):
        assert torch.allclose(mine, other, atol=1e-5 * other.abs().max().item())


def test_kernels_are_told_where_texts_begin() -> None:
    """fla takes all texts of a micro-batch as one sequence, with where each of them ends."""
    segments = torch.tensor([[0, 0, 1, 1, 2], [0, 0, 0, 0, 1]])
    assert text_borders(segments).tolist() == [0, 2, 4, 5, 9, 10]
