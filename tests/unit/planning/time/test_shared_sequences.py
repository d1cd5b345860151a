"""Context parallelism: what of attention and of the host's work depends on how a backend shares a sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.timed_jobs import device

from orchestrator.planning.time import estimate_time
from orchestrator.planning.time.roofline import roofline
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

LONG = {"num_layers": 4, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 65536}
SHORT = {**LONG, "seq_length": 2048, "position_embedding_type": "rope"}
LOWERED: list[dict[str, Any]] = [
    {"position_embedding_type": "alibi"},
    {"attention_logit_softcapping": 50.0},
    {"sliding_window": 1024},
]


def job(make_job: Any, layers: Layers, cp: int, model: dict[str, Any], **runtime: Any) -> JobSpec:
    found: JobSpec = make_job(
        model={**model, "attention_dropout": 0.0, "hidden_dropout": 0.0},
        parallelism={"context_parallel_size": cp},
        launch={"gpus_per_node": cp},
        runtime={"layers": layers, "cuda_graphs": False, **runtime},
        precision={"dtype": "bf16"},
        batch={"micro_batch_size": 1, "global_batch_size": 2},
    )
    return found


def parts(found: JobSpec, layers: Layers, gpu: str = "H100") -> Any:
    return estimate_time(found, 51200, layers, device(gpu)).parts


@pytest.mark.parametrize(("gpu", "times"), [("H100", 1.85), ("A100", 1.0)])
def test_torchs_attention_is_slower_where_a_faster_kernel_takes_no_pieces(
    gpu: str, times: float, make_job: Any
) -> None:
    alone, shared = (parts(job(make_job, "torch", cp, LONG), "torch", gpu)["attention"] for cp in (1, 2))
    assert 2 * shared == pytest.approx(times * alone, rel=0.01)


@pytest.mark.parametrize("model", LOWERED, ids=lambda model: next(iter(model)))
def test_scores_with_a_mask_take_both_backends_as_long_as_without(model: dict[str, Any], make_job: Any) -> None:
    """It is the same attention of torch's in both, with a mask of every score, in pieces too."""
    plain, torchs, engines = (
        parts(job(make_job, layers, cp, {**LONG, **model}), layers)["attention"]
        for layers, cp in (("torch", 1), ("torch", 2), ("transformer_engine", 2))
    )
    assert 2 * torchs == pytest.approx(plain, rel=0.01)
    assert engines == pytest.approx(torchs, rel=0.01)


def host(make_job: Any, layers: Layers, cp: int, model: dict[str, Any] = SHORT, **runtime: Any) -> float:
    """Seconds of a step that so short a sequence has the GPU wait."""
    found = parts(job(make_job, layers, cp, model, **runtime), layers)
    return float(sum(found.values()))


def test_a_ring_takes_the_host_a_round_for_each_rank_and_a_gathering_once(make_job: Any) -> None:
    two, four, eight = (host(make_job, "transformer_engine", cp) for cp in (2, 4, 8))
    assert eight - four == pytest.approx(2 * (four - two), rel=0.05)
    assert four > 1.4 * two
    few, many = (host(make_job, "torch", cp) for cp in (2, 8))
    assert many == pytest.approx(few, rel=0.05)


@pytest.mark.parametrize("model", LOWERED, ids=lambda model: next(iter(model)))
def test_what_no_ring_takes_is_gathered(model: dict[str, Any], make_job: Any) -> None:
    few, many = (host(make_job, "transformer_engine", cp, {**SHORT, **model}) for cp in (2, 8))
    assert many < 1.1 * few


@pytest.mark.parametrize("layers", ["torch", "transformer_engine"])
def test_attention_that_is_computed_again_is_exchanged_again(layers: Layers, make_job: Any) -> None:
    again = {"recompute_granularity": "selective"}
    alone = host(make_job, layers, 1, **again) - host(make_job, layers, 1)
    assert host(make_job, layers, 2, **again) - host(make_job, layers, 2) > 1.3 * alone


def test_keys_and_values_are_sent_again_for_it(make_job: Any) -> None:
    found = job(make_job, "torch", 2, LONG, recompute_granularity="selective")
    slow = replace(device(), link_bandwidth=device().link_bandwidth / 10)
    sent, slowly = (estimate_time(found, 51200, "torch", on).parts for on in (device(), slow))
    later = {name: slowly[name] - sent[name] for name in ("recompute", "context_parallel")}
    assert later["recompute"] == pytest.approx(later["context_parallel"] / 2)  # which is of both passes


def test_linear_attention_sends_each_element_to_one_rank(make_job: Any) -> None:
    """What is projected to the rank that has its head, and what its heads give back; attention gathers keys and values.
    A slower link says how many bytes there are.
    """
    delta = {"linear_attention_freq": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8}
    widths = {"linear_key_head_dim": 32, "linear_value_head_dim": 64, "add_bias_linear": False}
    slow = replace(device(), link_bandwidth=device().link_bandwidth / 10)

    def sent(model: dict[str, Any], cp: int) -> float:
        found = job(make_job, "torch", cp, {**LONG, "add_bias_linear": False, **model})
        fast, slowly = (estimate_time(found, 51200, "torch", on).parts["context_parallel"] for on in (device(), slow))
        return float(slowly - fast)

    keys, values, gathered = 4 * 32, 8 * 64, 2 * 2048
    linear = 2 * keys + 2 * values + 2 * 8 + values
    for cp in (2, 4):
        expected = (3 * linear + cp * gathered) / (4 * cp * gathered)
        assert sent({**delta, **widths}, cp) / sent({}, cp) == pytest.approx(expected, rel=1e-3)


def test_nothing_is_attended_in_pieces_on_the_roofline(make_job: Any) -> None:
    alone, shared = (roofline(job(make_job, "torch", cp, LONG), 51200, device())["attention"] for cp in (1, 2))
    assert 2 * shared == pytest.approx(alone, rel=0.01)


def test_layers_without_a_window_are_gathered_beside_those_with_one(make_job: Any) -> None:
    """Transformer Engine's layers have torch's attention then, all of them."""
    model = {**LONG, "sliding_window": 1024, "window_attn_skip_freq": 2}
    torchs, engines = (
        parts(job(make_job, layers, 2, model), layers)["attention"] for layers in ("torch", "transformer_engine")
    )
    assert engines == pytest.approx(torchs, rel=0.01)
