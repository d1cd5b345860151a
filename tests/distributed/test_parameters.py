"""The runtime builds as many parameters on each rank as `plan` says, for every shipped job and every preset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks, ranks_forked_in
from support.shipped import SHIPPED

from orchestrator.models.layers import layers
from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_job, load_text
from orchestrator.spec.presets import preset_names, preset_text

pytestmark = [pytest.mark.distributed, pytest.mark.slow("ranks for each size of a replica build many networks")]

LARGEST = 5_000_000
"""Parameters of a rank up to which weights are made for real; larger networks are built without memory."""


def one_replica(path: Path) -> JobSpec:
    """The job at its TP and PP, without data parallelism, on one machine."""
    degrees = load_job([path], []).job.parallelism
    processes = degrees.tensor_model_parallel_size * degrees.pipeline_model_parallel_size
    alone = ("data_parallel_size=1", "expert_model_parallel_size=1")
    changes = [f"launch.gpus_per_node={processes}", "launch.nodes=1", *(f"parallelism.{one}" for one in alone)]
    return load_job([path], changes).job


def of_preset(name: str) -> JobSpec:
    """A preset on one rank, with as many of its layers as have one of each kind; the others are like these."""
    model = {"preset": name, **({} if "vocab_size" in preset_text(name) else {"vocab_size": 30522})}
    sections = {
        **{"name": name, "model": model, "data": {"random_tokens": True}, "batch": {}},
        **{"optimizer": {"lr": 1e-4}, "schedule": {"train_iters": 1}},
    }
    whole = load_text(json.dumps(sections)).job.model
    kinds = layers(whole)
    count = min(len(kinds), max(FEWEST, 1 + max(kinds.index(kind) for kind in kinds)))
    by_layer = {
        field: value[:count]
        for field, value in whole
        if (isinstance(value, list | tuple) or (field == "hybrid_override_pattern" and value))
        and len(value) == len(kinds) > count
    }
    sections["model"] = {**model, "num_layers": count, **by_layer}
    return load_text(json.dumps(sections)).job


FEWEST = 2
"""Layers of a preset that are built at least."""
PRESETS = {f"preset-{name}": of_preset(name) for name in preset_names()}
MTP = {
    **{"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 300},
    **{"normalization": "RMSNorm", "activation": "swiglu", "mtp_num_layers": 2},
}


def of_further_tokens(**model: Any) -> JobSpec:
    """A job that predicts further tokens, at PP = 2."""
    sections = {
        **{"name": "mtp", "model": {**MTP, **model}, "data": {"random_tokens": True}, "batch": {}},
        **{"optimizer": {"lr": 1e-4}, "schedule": {"train_iters": 1}},
        "parallelism": {"pipeline_model_parallel_size": 2},
    }
    return load_text(json.dumps(sections)).job


FURTHER = {
    "mtp-tied": of_further_tokens(),
    "mtp-untied": of_further_tokens(untie_embeddings_and_output_weights=True),
    "mtp-experts": of_further_tokens(num_experts=4, add_bias_linear=False, moe_layer_freq=[0, 1, 1, 1]),
}
REPLICAS = {name: one_replica(path) for name, path in SHIPPED.items()} | PRESETS | FURTHER


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks with torch's compiler, which each would import: shapes of tensors without memory go through it."""
    with ranks_forked_in(tmp_path_factory.mktemp("ranks"), "torch._dynamo") as made:
        yield made


@pytest.mark.parametrize("processes", sorted({job.world_size for job in REPLICAS.values()}))
def test_plan_counts_what_the_runtime_builds(processes: int, ranks: Ranks, tmp_path: Path) -> None:
    jobs = {name: job for name, job in REPLICAS.items() if job.world_size == processes}
    for name, job in jobs.items():
        (tmp_path / f"{name}.json").write_text(dump_resolved(job))
    resolved = (str(tmp_path / f"{name}.json") for name in jobs)
    program = Path(__file__).with_name("count_program.py")
    assert ranks.starter.start(tmp_path, processes, str(LARGEST), *resolved, program=program).wait() == 0
    built = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(processes)]
    for name, job in jobs.items():
        planned = parameters(job, vocabulary(job).padded_size).per_rank
        tp_size = job.parallelism.tensor_model_parallel_size
        assert {(rank.tp, rank.pp): rank.parameters for rank in planned} == {
            (rank % tp_size, rank // tp_size): built[rank][name] for rank in range(processes)
        }, name


def test_small_jobs_are_built_for_real() -> None:
    small = {
        name for name, job in REPLICAS.items() if parameters(job, vocabulary(job).padded_size).largest_rank <= LARGEST
    }
    assert small >= {"quickstart", "gpt-tiny-cpu"}
