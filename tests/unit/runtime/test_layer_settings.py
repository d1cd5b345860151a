"""What the blocks of a model say of its layers' configuration is in it, in models of every kind."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import dataclasses
import inspect
from typing import Any

import pytest
import torch
from support.matrix import FAMILIES
from support.training import layout, tiny_job

from orchestrator.models.blocks.base import Degrees, LayerSetup
from orchestrator.models.blocks.block import Block
from orchestrator.models.blocks.registry import BLOCKS, AttentionBlock
from orchestrator.models.layers import blocks_of, layers_differ, settings_of
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.gelu import gelu
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:megatron")

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")
MODELS = {**FAMILIES, "hybrid": {**FAMILIES["hybrid"], "position_embedding_type": "none", "mamba_num_groups": 1}}
BATCH = {"micro_batch_size": 1, "global_batch_size": 4}


@pytest.mark.parametrize("name", MODELS)
def test_all_that_blocks_say(name: str) -> None:
    job = tiny_job("job", model=MODELS[name], parallelism=layout(dp=2), batch=BATCH)
    config = transformer_config(job, CPU, "torch")
    said = settings_of(blocks_of(job.model), job.model, LayerSetup(2, Degrees(), False, gelu))
    assert {"num_attention_heads", "ffn_hidden_size", "normalizes_inputs"} <= said.keys()
    activation = said.pop("activation_func")  # may be a partial, which equals itself alone
    assert type(config.activation_func) is type(activation)
    assert {name: getattr(config, name) for name in said} == said
    assert config.hetereogenous_dist_checkpoint == layers_differ(job.model)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_what_no_configuration_declares_is_read_by_its_block(block: Block) -> None:
    """It is set whatever its name: one that megatron-core does not have, or that is misspelt, would do nothing."""
    declared = {field.name for field in dataclasses.fields(LayerConfig)}
    models = [tiny_job("job", model=model).model for model in MODELS.values()]
    setup = LayerSetup(1, Degrees(), False, gelu)
    said = {name for model in models if block in blocks_of(model) for name in block.settings(model, setup)}
    source = inspect.getsource(block.part("layers"))
    assert said
    assert {name for name in said - declared if f"config.{name}" not in source} == set()


def test_the_global_balancing_loss_weighs_the_same_at_every_dp() -> None:
    """megatron-core divides it by DP."""
    several = {"moe_router_load_balancing_type": ["aux_loss", "global_aux_loss"], "moe_aux_loss_coeff": [0.1, 0.25]}
    for changes, weights in (
        ({"moe_router_load_balancing_type": "global_aux_loss", "moe_aux_loss_coeff": 0.25}, 0.5),
        (several, [0.1, 0.5]),
    ):
        model = {**FAMILIES["experts"], **changes}
        job = tiny_job("job", model=model, parallelism=layout(dp=2), batch=BATCH)
        assert transformer_config(job, CPU, "torch").moe_aux_loss_coeff == weights


def test_an_attention_is_as_grouped_query_attention_but_for_what_it_says() -> None:
    """An attention of another package that says one thing has all others all the same."""

    class Scaled(AttentionBlock):
        def part(self, name: str) -> Any:
            return type("Part", (), {"settings": staticmethod(lambda model, setup: {"softmax_scale": 3.0})})

    model = tiny_job(
        "job", model={"normalization": "RMSNorm", "qk_layernorm": True, "qk_layernorm_scope": "projection"}
    ).model
    setup = LayerSetup(1, Degrees(), False, gelu)
    plain = model.attention.settings(model, setup)
    scaled = Scaled("scaled", is_used=lambda model: True).settings(model, setup)
    assert plain["qk_layernorm_scope"] == "projection"
    assert scaled == {**plain, "softmax_scale": 3.0}
