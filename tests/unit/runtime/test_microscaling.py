"""MXFP8 and NVFP4 without a GPU: what megatron-core is told, and who is refused."""

from __future__ import annotations

from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.enums import Fp4Recipe, Fp8Recipe
from support.cuda import show_gpus
from support.training import four_layer_job

from orchestrator.errors import MissingDependency
from orchestrator.runtime.layers.transformer_engine.quantization import require_products
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device
from orchestrator.spec.job import JobSpec

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:megatron")

GPU = Device("cuda", torch.device("cpu"), "nccl", "a GPU")
NARROW: dict[str, dict[str, Any]] = {"mxfp8": {"fp8": {"recipe": "mxfp8"}}, "nvfp4": {"fp4": {"recipe": "nvfp4"}}}


def job(precision: dict[str, Any]) -> JobSpec:
    # megatron-core refuses the fused rotation where Transformer Engine is not installed.
    return four_layer_job(
        "job", model={"position_embedding_type": "learned_absolute"}, precision={"dtype": "bf16", **precision}
    )


def test_megatron_core_is_told() -> None:
    config = transformer_config(job(NARROW["mxfp8"]), GPU, "transformer_engine")
    assert (config.fp8, config.fp8_recipe, config.fp4) == ("e4m3", Fp8Recipe.mxfp8, None)
    ends = {"num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 2}
    config = transformer_config(job({"fp4": {"recipe": "nvfp4", **ends}}), GPU, "transformer_engine")
    assert (config.fp4, config.fp4_recipe, config.fp8) == ("e2m1", Fp4Recipe.nvfp4, None)
    assert not config.fp4_param
    assert config.first_last_layers_bf16
    assert (config.num_layers_at_start_in_bf16, config.num_layers_at_end_in_bf16) == (1, 2)
    assert transformer_config(job(NARROW["nvfp4"]), GPU, "torch").fp4 is None, "as generation builds a model"


@pytest.mark.parametrize("recipe", NARROW)
def test_layers_of_torch_are_refused(recipe: str) -> None:
    with refused("missing_dependency", *NARROW[recipe], kind=MissingDependency):
        require_products(job(NARROW[recipe]).precision, "torch")


@pytest.mark.parametrize("recipe", NARROW)
def test_gpus_of_compute_capability_10_train_and_others_are_refused(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = job(NARROW[recipe]).precision
    module: Any = ModuleType("transformer_engine.pytorch.fp8")
    module.FP8GlobalStateManager = SimpleNamespace(
        is_mxfp8_available=lambda: (True, ""), is_nvfp4_available=lambda: (True, "")
    )
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", module)
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for major, minor in ((9, 0), (8, 9), (12, 0)):
        show_gpus(monkeypatch, get_device_capability=(major, minor))
        with refused("gpu_without_microscaling", f"recipe: {recipe}", f"{major}.{minor}"):
            require_products(precision, "transformer_engine")
    for minor in (0, 3):
        show_gpus(monkeypatch, get_device_capability=(10, minor))
        require_products(precision, "transformer_engine")
    module.FP8GlobalStateManager = SimpleNamespace()
    with refused("unavailable_fp8_recipe", f"recipe: {recipe}"):
        require_products(precision, "transformer_engine")
