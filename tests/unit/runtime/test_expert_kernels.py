"""Which of Transformer Engine's kernels for experts a run has, and how it is told to multiply them at once."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest
import torch
from megatron.core.transformer.moe import moe_utils
from support.training import tiny_job

from orchestrator.kernel_selection.experts import can_fuse_router, multiplies_in_one_kernel
from orchestrator.runtime.layers import expert_kernels
from orchestrator.runtime.layers.expert_kernels import kernel_settings
from orchestrator.runtime.layers.grouped_experts.transformer_engine_products import multiply_in_one_kernel
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.launch import GROUPED_PRODUCTS
from tests.unit.runtime.conftest import PutKernels

MIXTURE = {"num_experts": 4, "moe_router_topk": 2, "activation": "swiglu", "add_bias_linear": False}
ENGINES = "transformer_engine"
GROUPED, PERMUTES, ROUTES = "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"


def mixture(sections: dict[str, Any] | None = None, **model: Any) -> JobSpec:
    return tiny_job("mixture", **{"model": {**MIXTURE, **model}, "runtime": {"device": "auto"}, **(sections or {})})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Transformer Engine that has all of them, by megatron-core's names."""
    for name in (*expert_kernels.PERMUTING, *expert_kernels.ROUTING):
        monkeypatch.setattr(moe_utils, name, object(), raising=False)


def on(job: JobSpec, layers: Any = ENGINES) -> set[str]:
    return {name for name, is_on in kernel_settings(job, layers).items() if is_on}


@pytest.mark.usefixtures("engine")
def test_all_of_them_by_default() -> None:
    assert on(mixture()) == {GROUPED, PERMUTES, ROUTES}


@pytest.mark.usefixtures("engine")
def test_none_with_torchs_layers() -> None:
    assert on(mixture(), "torch") == set()


@pytest.mark.parametrize("missing", [*expert_kernels.PERMUTING, *expert_kernels.ROUTING])
@pytest.mark.usefixtures("engine")
def test_an_older_engine_is_not_asked_for_more_than_it_has(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe_utils, missing, None)
    assert on(mixture()) == {GROUPED, PERMUTES, ROUTES} - {PERMUTES if missing in expert_kernels.PERMUTING else ROUTES}


def test_none_where_no_engine_is_installed() -> None:
    """megatron-core does not even have the names then."""
    assert on(mixture()) == {GROUPED}


@pytest.mark.parametrize(
    ("job", "left"),
    [
        (mixture({"runtime": {"device": "auto", "deterministic": True}}), {GROUPED}),
        (mixture(moe_router_dtype="fp64"), {GROUPED, PERMUTES}),
        (mixture(moe_router_load_balancing_type="sinkhorn"), {GROUPED, PERMUTES}),
        (mixture(moe_router_load_balancing_type="seq_aux_loss"), {GROUPED, PERMUTES, ROUTES}),
        (mixture(moe_grouped_gemm=False), {PERMUTES, ROUTES}),
        (mixture(num_experts=4096), {GROUPED, PERMUTES}),
    ],
    ids=["deterministic", "fp64", "sinkhorn", "sequences", "one-by-one", "too-many"],
)
@pytest.mark.usefixtures("engine")
def test_what_a_job_rules_out(job: JobSpec, left: set[str]) -> None:
    assert on(job) == left


def test_the_loss_of_each_sequence_has_a_sum_for_each() -> None:
    """Its kernel holds 8 bytes for each expert and sequence of a micro-batch in 48 KiB."""
    balancing = {"num_experts": 512, "moe_router_load_balancing_type": "seq_aux_loss"}
    batches = [{"batch": {"micro_batch_size": size, "global_batch_size": size}} for size in (12, 13)]
    assert [can_fuse_router(mixture(batch, **balancing)) for batch in batches] == [True, False]


@pytest.mark.parametrize(("width", "possible"), [(64, True), (60, False)])
def test_rows_have_whole_vectors(width: int, possible: bool) -> None:
    assert multiplies_in_one_kernel(mixture(moe_ffn_hidden_size=width), ENGINES) is possible


GROUPED_LINEAR = "transformer_engine.pytorch.module.grouped_linear"
IN_FP32 = {"runtime": {"device": "auto"}, "precision": {"dtype": "fp32"}}
IN_BF16 = {"runtime": {"device": "auto"}, "precision": {"dtype": "bf16"}}


class Engine(types.ModuleType):
    """Transformer Engine's module of grouped products, which notes what it is asked to do, and how."""

    def __init__(self) -> None:
        super().__init__(GROUPED_LINEAR)
        self.asked: list[tuple[list[int], str | None]] = []

        def general_grouped_gemm(tensors: Any, *others: Any, m_splits: list[int], **options: Any) -> Any:
            self.asked.append((m_splits, os.environ.get(GROUPED_PRODUCTS)))
            return tensors

        self.general_grouped_gemm = general_grouped_gemm


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A stand-in for Transformer Engine, in an environment that says nothing of it."""
    monkeypatch.setenv(GROUPED_PRODUCTS, "")  # restored afterwards, whatever was set
    monkeypatch.delenv(GROUPED_PRODUCTS)
    module = Engine()
    monkeypatch.setitem(sys.modules, GROUPED_LINEAR, module)
    return module


def test_experts_are_multiplied_at_once_where_a_rank_has_tokens(grouped: Engine) -> None:
    for _ in range(2):  # a second session of a process changes nothing
        multiply_in_one_kernel(mixture(IN_FP32), ENGINES)
    for splits in ([0, 3, 5], [0, 0, 0], [1, 0, 0]):
        assert grouped.general_grouped_gemm("tensors", m_splits=splits) == "tensors"
    assert grouped.asked == [([0, 3, 5], "1"), ([0, 0, 0], "0"), ([1, 0, 0], "1")]


def test_a_person_may_say_otherwise(grouped: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GROUPED_PRODUCTS, "0")
    multiply_in_one_kernel(mixture(IN_BF16), ENGINES)
    grouped.general_grouped_gemm("tensors", m_splits=[3])
    assert grouped.asked == [([3], "0")]


@pytest.mark.parametrize("job", [mixture(moe_grouped_gemm=False), mixture(moe_ffn_hidden_size=60)])
def test_it_is_not_asked_for_where_it_cannot_be(job: JobSpec, grouped: Engine) -> None:
    multiply_in_one_kernel(job, ENGINES)
    assert GROUPED_PRODUCTS not in os.environ


class Kernel:
    """The kernels' sums in torch's operations, and how many products there were."""

    def __init__(self) -> None:
        self.calls = 0

    def add_products(
        self,
        inputs: torch.Tensor,
        of_output: torch.Tensor,
        buffers: list[torch.Tensor],
        tokens: list[int],
        *,
        adds: bool,
    ) -> None:
        self.calls += 1
        for buffer, rows, of_rows in zip(buffers, inputs.split(tokens), of_output.split(tokens), strict=True):
            buffer.copy_(of_rows.float().t() @ rows.float() + (buffer if adds else 0))

    @staticmethod
    def add_bias_gradients(
        of_output: torch.Tensor, buffers: list[torch.Tensor], tokens: list[int], *, adds: bool
    ) -> None:
        for buffer, of_rows in zip(buffers, of_output.split(tokens), strict=True):
            buffer.copy_(of_rows.float().sum(0) + (buffer if adds else 0))


class Quantized(torch.Tensor):
    """What Transformer Engine multiplies in FP8."""


SPLITS = [3, 0, 5]


@pytest.fixture
def kernel(grouped: Engine, put_kernels: PutKernels) -> Kernel:
    """What computes weight gradients of a job in bf16."""
    found = Kernel()
    put_kernels("grouped_products", found)
    put_kernels("expert_biases", found)
    for _ in range(2):
        multiply_in_one_kernel(mixture(IN_BF16), ENGINES)
    return found


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("moved", [False, True], ids=["split", "moved"])
def test_weight_gradients_are_computed_at_once(adds: bool, moved: bool, kernel: Kernel, grouped: Engine) -> None:
    rows, of_rows = (torch.randn(8, width, dtype=torch.bfloat16) for width in (4, 6))
    inputs, others = rows.split(SPLITS), of_rows.split(SPLITS)
    if moved:
        inputs = tuple(each.clone() for each in inputs)
    out = [torch.ones(6, 4) for _ in SPLITS]
    options = {"m_splits": SPLITS, "layout": "NT", "grad": True, "accumulate": adds, "use_bias": True}
    found, of_bias, _ = grouped.general_grouped_gemm(inputs, others, out, **options)
    assert kernel.calls == 1
    assert not grouped.asked
    for gradient, bias, each, of_each in zip(found, of_bias, inputs, others, strict=True):
        torch.testing.assert_close(gradient, of_each.float().t() @ each.float() + adds)
        torch.testing.assert_close(bias, of_each.float().sum(0))


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_other_products_are_transformer_engines(layout: str, kernel: Kernel, grouped: Engine) -> None:
    """Those of quantized tensors, and the gradients of tokens."""
    plain = torch.zeros(3, 4)
    inputs = [plain if layout == "NN" else plain.as_subclass(Quantized)]
    assert grouped.general_grouped_gemm(inputs, [plain], [plain], m_splits=[3], layout=layout) is inputs
    assert grouped.asked == [([3], "1")]
    assert not kernel.calls
