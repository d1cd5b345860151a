"""FP8 without a GPU: what megatron-core is told, who is refused, and that an evaluation leaves the scales alone."""

from __future__ import annotations

from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.enums import Fp8Recipe
from support.training import four_layer_job

from orchestrator.errors import MissingDependency
from orchestrator.runtime.layers.transformer_engine.quantization import (
    QuantizedWeights,
    largest_values_kept,
    quantization_settings,
    require_products,
)
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device
from orchestrator.spec.job import JobSpec

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:megatron")

GPU = Device("cuda", torch.device("cpu"), "nccl", "a GPU")


def job(recipe: str | None, **more: Any) -> JobSpec:
    precision = {"dtype": "bf16", "fp8": None if recipe is None else {"recipe": recipe, **more}}
    # megatron-core refuses the fused rotation where Transformer Engine is not installed.
    return four_layer_job("job", model={"position_embedding_type": "learned_absolute"}, precision=precision)


def test_megatron_core_is_told() -> None:
    config = transformer_config(job("delayed", margin=1, amax_history_len=16), GPU, "transformer_engine")
    assert (config.fp8, config.fp8_recipe) == ("hybrid", Fp8Recipe.delayed)
    assert (config.fp8_margin, config.fp8_amax_history_len, config.fp8_amax_compute_algo) == (1, 16, "max")
    assert not config.first_last_layers_bf16
    assert not config.fp8_param
    ends = {"num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 2}
    config = transformer_config(job("blockwise", **ends), GPU, "transformer_engine")
    assert (config.fp8, config.fp8_recipe) == ("e4m3", Fp8Recipe.blockwise)
    assert config.first_last_layers_bf16
    assert (config.num_layers_at_start_in_bf16, config.num_layers_at_end_in_bf16) == (0, 2)


def test_without_fp8_and_with_the_layers_of_torch_it_is_told_nothing() -> None:
    assert quantization_settings(job(None).precision, "transformer_engine") == {}
    assert transformer_config(job("delayed"), GPU, "torch").fp8 is None, "as generation builds a model"


def test_layers_of_torch_are_refused() -> None:
    require_products(job(None).precision, "torch")
    with refused("missing_dependency", "precision.fp8", kind=MissingDependency):
        require_products(job("delayed").precision, "torch")


class Able:
    """Transformer Engine's answers on a GPU of Ada's generation."""

    @staticmethod
    def is_fp8_available() -> tuple[bool, str]:
        return True, ""

    @staticmethod
    def is_fp8_block_scaling_available() -> tuple[bool, str]:
        return False, "FP8 block scaled GEMM requires compute capability 9.0 or higher and CUDA >= 12.9."


def test_a_gpu_that_cannot_is_refused_in_transformer_engine_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("transformer_engine.pytorch.fp8")
    module.FP8GlobalStateManager = Able
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", module)
    require_products(job("delayed").precision, "transformer_engine")
    require_products(job("tensorwise").precision, "transformer_engine")
    with refused("unavailable_fp8_recipe", "recipe: blockwise", "9.0"):
        require_products(job("blockwise").precision, "transformer_engine")
    module.FP8GlobalStateManager = SimpleNamespace(is_fp8_available=Able.is_fp8_available)
    with refused("unavailable_fp8_recipe", "recipe: blockwise"):
        require_products(job("blockwise").precision, "transformer_engine")


class Scaled(torch.nn.Module):
    """As Transformer Engine's modules keep their scales: from the first forward pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.fp8_meta: dict[str, Any] = {}

    def sees(self, value: float) -> None:
        if "scaling_fwd" not in self.fp8_meta:
            self.fp8_meta["scaling_fwd"] = SimpleNamespace(amax_history=torch.zeros(4, 3))
        self.fp8_meta["scaling_fwd"].amax_history[0].clamp_(min=value)

    @property
    def row(self) -> list[float]:
        row: list[float] = self.fp8_meta["scaling_fwd"].amax_history[0].tolist()
        return row


def test_an_evaluation_leaves_the_largest_values_as_they_were() -> None:
    used, unused, current = Scaled(), Scaled(), Scaled()
    current.fp8_meta["scaling_fwd"] = SimpleNamespace()  # another recipe's, which remembers nothing
    used.sees(2.0)
    chunk = torch.nn.Sequential(used, torch.nn.Sequential(unused, current), torch.nn.Linear(1, 1))
    with torch.no_grad(), largest_values_kept([chunk]):
        used.sees(8.0)
        unused.sees(8.0)
        assert used.row == unused.row == [8.0] * 3
    assert used.row == [2.0] * 3
    assert unused.row == [0.0] * 3


class Quantized(torch.nn.Module):
    """As megatron-core's modules are told, and as Transformer Engine's keep a weight in FP8."""

    def __init__(self) -> None:
        super().__init__()
        self.told = 0
        self._fp8_workspaces: dict[str, Any] = {}

    def set_is_first_microbatch(self) -> None:
        self.told += 1


def test_only_the_first_micro_batch_of_a_step_makes_weights_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: list[bool] = []
    module: Any = ModuleType("transformer_engine.pytorch.fp8")
    module.FP8GlobalStateManager = SimpleNamespace(set_skip_fp8_weight_update_tensor=skipped.append)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", module)
    chunk: Any = Quantized()
    weights = QuantizedWeights(chunk)
    for index in range(3):
        with weights.micro_batch(is_first=index == 0):
            chunk.set_is_first_microbatch()  # as the schedule of one micro-batch does
    assert chunk.told == 1
    assert skipped == [False, True, True]
    chunk.set_is_first_microbatch()
    assert chunk.told == 2, "an evaluation between the steps makes them anew"


@pytest.mark.parametrize("fails", [False, True])
def test_an_evaluation_has_fp8_of_its_own(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph reads and writes is what the passes beside it do."""
    module: Any = ModuleType("transformer_engine.pytorch.fp8")
    module.FP8GlobalStateManager = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", module)
    chunk: Any = torch.nn.Sequential(Quantized(), torch.nn.Linear(1, 1))
    chunk.set_is_first_microbatch = lambda: None
    kept = chunk[0]._fp8_workspaces = {"weight": torch.zeros(4)}
    weights = QuantizedWeights(chunk)
    with contextlib.suppress(ZeroDivisionError), weights.set_aside():
        assert chunk[0]._fp8_workspaces == {}
        chunk[0]._fp8_workspaces["weight"] = torch.ones(4)
        if fails:
            raise ZeroDivisionError
    assert chunk[0]._fp8_workspaces is kept
    assert not kept["weight"].any()
