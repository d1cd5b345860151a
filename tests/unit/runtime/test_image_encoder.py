"""The image encoder's layers are CLIP's, whatever the decoder's are."""

from __future__ import annotations

from typing import Any

import pytest
from support.matrix import FAMILIES
from support.training import tiny_job

from orchestrator.runtime.layers.images import encoder
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import select_device

OF_DECODERS: dict[str, dict[str, Any]] = {
    "norms": {"qk_l2_norm": True, "no_rope_freq": 2, "attention_temperature_scale": 0.1, "add_bias_linear": False},
    "sinks": {"softmax_type": "learnable", "attention_output_gate": True, "sliding_window": 8},
    "parallel": {"parallel_residual": "two_norms", "apply_layernorm_1p": True, "no_rope_freq": 2},
    "norms without biases": {"normalization": "LayerNorm", "norm_bias": False},
}


def settings_of_encoder(**model: Any) -> dict[str, str]:
    job = tiny_job("seen", model={**FAMILIES["vision"], **model})
    config = transformer_config(job, select_device("cpu", threads=1), "torch")
    found = encoder.config_of_encoder(job.model.image_encoder, config)
    return {name: repr(value) for name, value in vars(found).items()}


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
@pytest.mark.parametrize("kind", OF_DECODERS)
def test_it_has_nothing_of_a_decoder(kind: str) -> None:
    assert settings_of_encoder(**OF_DECODERS[kind]) == settings_of_encoder()
