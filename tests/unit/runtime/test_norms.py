"""Norms in place of megatron-core's, which without apex and Transformer Engine refuses sequence parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.training import layout, tiny_job

from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({"normalization": "LayerNorm"}, {"weight", "bias"}),
        ({"normalization": "LayerNorm", "norm_bias": False}, {"weight"}),
        ({"normalization": "RMSNorm"}, {"weight"}),
    ],
)
def test_their_parameters_are_like_the_models(model: dict[str, Any], names: set[str]) -> None:
    """In its dtype: megatron-core's distributed optimizer groups those of another one apart, and cannot save them in
    the model's order. Marked: a tensor-parallel rank sees a part of the tokens, so gradients are summed.
    """
    job = tiny_job(
        "norms",
        model=model,
        precision={"dtype": "bf16"},
        parallelism=layout(tp=2, sequence_parallel=True),
    )
    config = transformer_config(job, CPU, "torch")
    parameters = dict(Norm(config, 8).named_parameters())
    assert parameters.keys() == names
    assert {each.dtype for each in parameters.values()} == {torch.bfloat16}
    assert all(vars(each)["sequence_parallel"] for each in parameters.values())
