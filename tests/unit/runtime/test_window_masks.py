"""Windows of an encoder look both ways: against transformers' ModernBERT, and a softmax by definition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import pytest
import torch
from megatron.core.transformer.enums import AttnMaskType
from transformers import ModernBertConfig
from transformers.masking_utils import sliding_window_bidirectional_mask_function

from orchestrator.runtime.layers.attention.masked import MaskedAttention, WindowMasks
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device
from orchestrator.spec.loading import load_text

LENGTHS, LENGTH, HEADS, WIDTH = (11, 4), 11, 2, 8


@pytest.fixture
def attention() -> MaskedAttention:
    """Of a layer with a window of two tokens on either side."""
    config: Any = SimpleNamespace(
        kv_channels=WIDTH,
        attention_dropout=0.0,
        softmax_type="vanilla",
        window_of=lambda number: 3,
    )
    return MaskedAttention(config, 2, AttnMaskType.padding, "self", masks=WindowMasks())


def test_a_token_sees_its_neighbours_that_are_no_padding(attention: MaskedAttention) -> None:
    query, key, value = torch.randn(3, LENGTH, 2, HEADS, WIDTH, generator=torch.Generator().manual_seed(1))
    hidden = torch.arange(LENGTH) >= torch.tensor(LENGTHS)[:, None, None, None]
    out = attention(query, key, value, hidden).view(LENGTH, 2, HEADS, WIDTH)
    places = torch.arange(LENGTH)
    near = sliding_window_bidirectional_mask_function(2)(0, 0, places[:, None], places)
    scores = torch.einsum("qbhd,kbhd->bhqk", query, key) / WIDTH**0.5
    weights = scores.masked_fill(hidden | ~near, float("-inf")).softmax(-1)
    expected = torch.einsum("bhqk,kbhd->qbhd", weights, value)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(out[:length, row], expected[:length, row])
    assert out.isfinite().all(), "what nothing is left of for padding would spread to all tokens"


def test_layers_share_the_mask_of_a_micro_batch() -> None:
    masks, hidden = WindowMasks(), torch.zeros(1, 1, 1, 4, dtype=torch.bool)
    made = masks.mask(hidden, 2, torch.float32)
    assert masks.mask(hidden, 2, torch.float32) is made
    assert masks.mask(hidden.clone(), 2, torch.float32) is not made


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
def test_published_layers_have_the_windows_of_transformers() -> None:
    """What megatron-core hands Transformer Engine too."""
    text = "name: x, batch: {}, data: {random_tokens: true}, optimizer: {lr: 1e-4}, schedule: {train_iters: 1}"
    job = load_text(f"{{{text}, model: {{preset: modernbert-base}}, runtime: {{device: cpu}}}}").job
    config = transformer_config(job, Device("cpu", torch.device("cpu"), "gloo", "cpu"), "torch")
    theirs = ModernBertConfig()
    assert config.window_size == (theirs.sliding_window, theirs.sliding_window)
    windows = [config.window_of(number) is not None for number in range(1, theirs.num_hidden_layers + 1)]
    assert windows == [kind == "sliding_attention" for kind in theirs.layer_types]
    assert [config.rotation_of(number) for number in range(1, theirs.num_hidden_layers + 1)] == [*map(int, windows)]
