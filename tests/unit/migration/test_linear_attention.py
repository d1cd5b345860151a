"""Megatron-LM's flags of linear attention as fields of a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.training import four_layer_job, layout

from orchestrator.migration.to_megatron import to_megatron

Flags = Callable[..., Any]
DELTA = "--experimental-attention-variant gated_delta_net --num-layers 4 --disable-bias-linear"
WIDTHS = "--linear-num-key-heads 2 --linear-num-value-heads 4 --linear-key-head-dim 16 --linear-value-head-dim 24"


@pytest.mark.parametrize(
    ("frequency", "layers"), [("2", (True, False, True, False)), ("[1]*2+[0]*2", (True, True, False, False))]
)
def test_linear_attention(flags: Flags, frequency: str, layers: tuple[bool, ...]) -> None:
    words = f"{DELTA} {WIDTHS} --linear-conv-kernel-dim 3 --attention-output-gate"
    model = flags(*words.split(), "--linear-attention-freq", frequency).job.model
    assert model.linear_attention_layers == layers
    assert (model.linear_num_key_heads, model.linear_num_value_heads, model.linear_conv_kernel_dim) == (2, 4, 3)
    assert (model.linear_key_head_dim, model.linear_value_head_dim, model.attention_output_gate) == (16, 24, True)


def test_flags_of_linear_attention_alone_do_nothing(flags: Flags) -> None:
    migrated = flags("--linear-num-key-heads", "8", "--linear-conv-kernel-dim", "2")
    assert not migrated.job.model.has_linear_attention
    outcomes = {migrated.outcome(flag) for flag in ("--linear-num-key-heads", "--linear-conv-kernel-dim")}
    assert outcomes == {"no_effect"}


def test_megatron_s_own_layers_are_not_asked_for() -> None:
    """It has gated delta nets with Transformer Engine only."""
    delta = {"linear_attention_freq": 2, "normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False}
    command = to_megatron(four_layer_job("job", model=delta, runtime={"layers": "torch"}))
    assert "--experimental-attention-variant" in command.words
    assert "--transformer-impl" not in command.words
    assert "runtime.layers" in [each.path for each in command.otherwise]


def test_megatron_shares_no_sequence_with_linear_attention() -> None:
    delta = {"linear_attention_freq": 2, "normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False}
    for model, is_written in (({}, True), (delta, False)):
        command = to_megatron(four_layer_job("job", model=model, parallelism=layout(context_parallel_size=2)))
        assert ("--context-parallel-size" in command.words) is is_written
        assert ("parallelism.context_parallel_size" in [each.path for each in command.unsaid]) is not is_written


@pytest.mark.parametrize(("words", "notes"), [("--swiglu --normalization RMSNorm", 0), ("--swiglu", 1), ("", 1)])
def test_its_norm_and_activation_are_those_of_the_model_there(flags: Flags, words: str, notes: int) -> None:
    migrated = flags(*DELTA.split(), "--linear-attention-freq", "2", *words.split())
    assert len([note for note in migrated.migration.notes if "SiLU" in note]) == notes
