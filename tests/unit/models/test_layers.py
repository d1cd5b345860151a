"""Which blocks each layer of a model has, and that the plan follows from what a block says of itself."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.training import tiny_job

from orchestrator.errors import UserError
from orchestrator.models.blocks.base import Degrees, LayerSetup, Matrix, Scores
from orchestrator.models.blocks.block import Block, Branch, RoutedBlock
from orchestrator.models.blocks.protocols import ParametersPart
from orchestrator.models.blocks.registry import EXPERTS, GROUPED_QUERY, MLP, STATE_SPACE
from orchestrator.models.layers import layers, layers_differ, settings_of
from orchestrator.planning.hardware.devices import Device, shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters.layer import expert_parameters, layer_parameters
from orchestrator.planning.time import estimate_time
from orchestrator.planning.time.kernels.accesses import TORCH
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.planning.time.passes import layer_pass
from orchestrator.planning.time.setting import setting_of

WITH_EXPERTS = {"num_layers": 4, "num_experts": 4, "moe_layer_freq": [1, 0, 1, 0], "add_bias_linear": False}
ROWS = 256


def test_the_blocks_of_each_layer() -> None:
    dense, routed = (GROUPED_QUERY, MLP), (GROUPED_QUERY, EXPERTS)
    assert layers(tiny_job("job").model) == (dense,) * tiny_job("job").model.num_layers
    assert layers(tiny_job("job", model=WITH_EXPERTS).model) == (routed, dense, routed, dense)
    hybrid = {"architecture": "mamba", "num_layers": 4, "hybrid_override_pattern": "M*-M"}
    assert layers(tiny_job("job").model.model_copy(update=hybrid)) == (
        *((STATE_SPACE,), (GROUPED_QUERY,)),
        *((MLP,), (STATE_SPACE,)),
    )


DIFFERING: dict[str, tuple[dict[str, Any], bool]] = {
    "dense": ({}, False),
    "all routed": (WITH_EXPERTS | {"moe_layer_freq": [1, 1, 1, 1]}, False),
    "some routed": (WITH_EXPERTS, True),
    "linear attention": ({"num_layers": 4, "linear_attention_freq": 2}, True),
    "t5": ({"architecture": "t5", "encoder_num_layers": 2, "decoder_num_layers": 1}, False),
    "hybrid": ({"architecture": "mamba", "num_layers": 4, "hybrid_override_pattern": "M*-M"}, True),
    "state space": ({"architecture": "mamba", "num_layers": 4}, True),
}


@pytest.mark.parametrize(("changes", "differ"), DIFFERING.values(), ids=DIFFERING)
def test_which_models_have_keys_for_each_layer(changes: dict[str, Any], differ: bool) -> None:
    assert layers_differ(tiny_job("job").model.model_copy(update=changes)) is differ


class Saying(Block):
    """Says what it is told to."""

    def __init__(self, name: str, **said: Any) -> None:
        super().__init__(name)
        self.said = said

    def settings(self, model: Any, setup: LayerSetup) -> dict[str, Any]:
        return self.said


def test_blocks_agree_on_what_layers_are_configured_with() -> None:
    setup = LayerSetup(1, Degrees(), fuses_activation=False, gelu=abs)
    blocks = [Saying("one", width=2, norm=True), Saying("other", width=2, depth=3), Saying("silent")]
    assert settings_of(blocks, None, setup) == {"width": 2, "norm": True, "depth": 3}
    with pytest.raises(UserError) as refused:
        settings_of([*blocks, Saying("third", depth=4)], None, setup)
    assert refused.value.code == "blocks_differ"
    assert all(word in str(refused.value) for word in ("other", "third", "depth"))


class GatedExperts(RoutedBlock):
    """Experts with a gate of the shared one, which every rank has whole."""

    @cached_property
    def parameters(self) -> ParametersPart:
        ours = EXPERTS.parameters
        gate = Matrix("gate", 16, 1, "replicated", has_bias=False)
        gated = SimpleNamespace(
            matrices=lambda model: (*ours.matrices(model), gate), other_parameters=ours.other_parameters
        )
        return cast("ParametersPart", gated)


def test_the_plan_follows_from_what_a_block_says() -> None:
    """Another matrix is in every count, and nothing beside the block knows of it."""
    model = WITH_EXPERTS | {"hidden_size": 16, "moe_shared_expert_intermediate_size": 32}
    job = tiny_job("job", model=model)
    setting = setting_of(job, ROWS, TORCH, _device())
    plain, gated = (GROUPED_QUERY, EXPERTS), (GROUPED_QUERY, GatedExperts("experts"))
    for degrees in (Degrees(), Degrees(tp=2, etp=1, ep=4)):
        counts = [layer_parameters(job.model, degrees, layer) for layer in (plain, gated)]
        assert counts[1] - counts[0] == 16
        assert expert_parameters(job.model, degrees, gated) == expert_parameters(job.model, degrees, plain)
    seconds = [layer_pass(setting, layer).forward["gemm"] for layer in (plain, gated)]
    assert seconds[1] - seconds[0] == pytest.approx(
        gemm_seconds(setting.own_tokens, 1, 16, setting.device, setting.dtype)
    )


class Attending(Branch):
    """Of a class that the planning does not know."""

    def scores(self, model: Any) -> Scores:
        return GROUPED_QUERY.scores(model)


def test_a_block_of_any_class_is_planned_by_what_it_says() -> None:
    setting = setting_of(tiny_job("job"), ROWS, TORCH, _device())
    attention, silent, attending = (
        layer_pass(setting, (block,)) for block in (GROUPED_QUERY, Branch("mlp"), Attending("mlp"))
    )
    assert "attention" not in silent.forward
    assert attending.forward == silent.forward | {"attention": attention.forward["attention"]}
    assert attending.backward == silent.backward | {"attention": attention.backward["attention"]}


def test_a_chunk_without_layers_of_a_model_with_two_kinds() -> None:
    """As with embedding and loss counted as layers, where chunks are one layer long."""
    job = tiny_job("job", model=WITH_EXPERTS).changed(
        parallelism={
            "pipeline_model_parallel_size": 6,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        }
    )
    memory = estimate_memory(job, ROWS, "torch")
    assert memory.stages[0].parts["weights"] > 0
    assert estimate_time(job, ROWS, "torch", _device()).step_seconds > 0


def _device() -> Device:
    found = shipped("NVIDIA H100 80GB HBM3")
    assert found is not None
    return found
