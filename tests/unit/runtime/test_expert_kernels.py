"""Which of Transformer Engine's kernels for experts a run has, and how it is told to multiply them at once."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest
from megatron.core.transformer.moe import moe_utils
from support.training import tiny_job

from orchestrator.kernel_selection.experts import GROUPED_PRODUCTS, can_fuse_router, multiplies_in_one_kernel
from orchestrator.runtime.layers import experts
from orchestrator.runtime.layers.experts import kernel_settings
from orchestrator.spec.job import JobSpec

MIXTURE = {"num_experts": 4, "moe_router_topk": 2, "activation": "swiglu", "add_bias_linear": False}
ENGINES = "transformer_engine"
GROUPED, PERMUTES, ROUTES = "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"


def mixture(sections: dict[str, Any] | None = None, **model: Any) -> JobSpec:
    return tiny_job("mixture", **{"model": {**MIXTURE, **model}, "runtime": {"device": "auto"}, **(sections or {})})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Transformer Engine that has all of them, by megatron-core's names."""
    for name in (*experts.PERMUTING, *experts.ROUTING):
        monkeypatch.setattr(moe_utils, name, object(), raising=False)


def on(job: JobSpec, layers: Any = ENGINES) -> set[str]:
    return {name for name, is_on in kernel_settings(job, layers).items() if is_on}


@pytest.mark.usefixtures("engine")
def test_all_of_them_by_default() -> None:
    assert on(mixture()) == {GROUPED, PERMUTES, ROUTES}


@pytest.mark.usefixtures("engine")
def test_none_with_torchs_layers() -> None:
    assert on(mixture(), "torch") == set()


@pytest.mark.parametrize("missing", [*experts.PERMUTING, *experts.ROUTING])
@pytest.mark.usefixtures("engine")
def test_an_older_engine_is_not_asked_for_more_than_it_has(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe_utils, missing, None)
    assert on(mixture()) == {GROUPED, PERMUTES, ROUTES} - {PERMUTES if missing in experts.PERMUTING else ROUTES}


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


def engine_of(asked: list[tuple[list[int], str | None]]) -> types.SimpleNamespace:
    """Transformer Engine's module of grouped products, which notes what it is asked to do, and how."""

    def general_grouped_gemm(tensor: str, *, m_splits: list[int]) -> str:
        asked.append((m_splits, os.environ.get(GROUPED_PRODUCTS)))
        return tensor

    return types.SimpleNamespace(general_grouped_gemm=general_grouped_gemm)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], str | None]]:
    """What a stand-in for Transformer Engine was asked, after one product with tokens and one without."""
    monkeypatch.setenv(GROUPED_PRODUCTS, "")  # restored afterwards, whatever was set
    monkeypatch.delenv(GROUPED_PRODUCTS)
    asked: list[tuple[list[int], str | None]] = []
    module = engine_of(asked)
    monkeypatch.setitem(sys.modules, GROUPED_LINEAR, module)
    for _ in range(2):  # a second session of a process changes nothing
        experts.multiply_in_one_kernel(mixture(), ENGINES)  # type: ignore[arg-type]
    assert module.general_grouped_gemm("of tokens", m_splits=[0, 3, 5]) == "of tokens"
    assert module.general_grouped_gemm("of none", m_splits=[0, 0, 0]) == "of none"
    assert module.general_grouped_gemm("of tokens", m_splits=[1, 0, 0]) == "of tokens"
    return asked


def test_experts_are_multiplied_at_once_where_a_rank_has_tokens(told: list[tuple[list[int], str | None]]) -> None:
    assert told == [([0, 3, 5], "1"), ([0, 0, 0], "0"), ([1, 0, 0], "1")]


def test_a_person_may_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GROUPED_PRODUCTS, "0")
    asked: list[tuple[list[int], str | None]] = []
    module = engine_of(asked)
    monkeypatch.setitem(sys.modules, GROUPED_LINEAR, module)
    experts.multiply_in_one_kernel(mixture(), ENGINES)
    module.general_grouped_gemm("of tokens", m_splits=[3])
    assert asked == [([3], "0")]


@pytest.mark.parametrize("job", [mixture(moe_grouped_gemm=False), mixture(moe_ffn_hidden_size=60)])
def test_it_is_not_asked_for_where_it_cannot_be(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GROUPED_PRODUCTS, "")
    monkeypatch.delenv(GROUPED_PRODUCTS)
    experts.multiply_in_one_kernel(job, ENGINES)
    assert GROUPED_PRODUCTS not in os.environ
