"""Every replica saves its own part of the optimizer's state, and reads its own part of what any layout has saved."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.trained_weights import BITWISE, weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

Inject = Callable[[str], Path]

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a training goes on at each of several layouts")]

LEG = 2
"""Steps until the next layout goes on."""
MODEL: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 40,
    "ffn_hidden_size": 44,
    "seq_length": 32,
    "activation": "swiglu",
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_ffn_hidden_size": 44, "add_bias_linear": False}
EP2 = {"expert_model_parallel_size": 2}

ALONE = """
import torch.distributed as dist
from orchestrator.runtime.checkpointing.checkpointer import Checkpointer
COLLECTIVES = [name for name in dir(dist) if name.startswith(("all_", "gather", "broadcast", "reduce", "scatter"))]
with_others = Checkpointer._state_dict
def refused(*arguments, **options):
    raise AssertionError("ranks exchange something for a save")
def alone(self, *arguments, **options):
    kept = {name: getattr(dist, name) for name in COLLECTIVES}
    for name in kept:
        setattr(dist, name, refused)
    try:
        return with_others(self, *arguments, **options)
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)
Checkpointer._state_dict = alone
"""
"""No rank asks another for anything to say what it saves."""

GATHERED = """
from orchestrator.runtime import megatron_compat
in_place = megatron_compat.save_state_of
def gathered(part):
    in_place(part)
    del part.sharded_param_state_fully_reshardable, part.load_parameter_state_from_fully_reshardable
    for buffer in part.buffers:  # megatron-core would count the padding in one place and not in the other
        buffer.numel_unpadded = buffer.numel
        for bucket in buffer.buckets:
            bucket.numel_unpadded = bucket.grad_data.numel()
megatron_compat.save_state_of = gathered
"""
"""States are saved and read as megatron-core does it, which gathers them."""


def job_at(parallelism: dict[str, Any], legs: int, model: dict[str, Any] | None = None) -> JobSpec:
    return tiny_job(
        "shards",
        model={**MODEL, **(model or {})},
        batch={"micro_batch_size": 8 // max(2, parallelism["data_parallel_size"])},
        schedule={"train_iters": LEG * legs, "lr_decay_style": "constant", "lr_warmup_iters": 1},
        checkpoint={"save_interval": LEG, "keep_last": 9},
        parallelism=parallelism,
    )


def through(ranks: Ranks, folder: Path, layouts: list[dict[str, Any]], model: dict[str, Any]) -> RunDir:
    """One run, a leg at each of these layouts, one after the other."""
    for legs, parallelism in enumerate(layouts, 1):
        job = job_at(parallelism, legs, model)
        run = make_run(folder, job)
        ranks.must_train(run, job, launch_id=f"leg-{legs}")
    assert [event["iteration"] for event in events(run, "resumed")] == [LEG * leg for leg in range(1, len(layouts))]
    return run


def states_by_rank(path: Path) -> tuple[Counter[int], int]:
    """How many elements of states each rank has written, and how many parts of rows."""
    metadata = FileSystemReader(path).read_metadata()
    counts, cut = Counter[int](), 0
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata) and key.startswith("optimizer.state."):
            for chunk in entry.chunks:
                written = metadata.storage_data[MetadataIndex(key, chunk.offsets)].relative_path
                counts[int(written.split("_")[2])] += chunk.sizes.numel()
                cut += len(entry.size) > 2 and chunk.sizes[-1] < entry.size[-1]
    return counts, cut


@pytest.fixture(scope="module")
def replicas(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Two, never interrupted."""
    job = job_at(layout(dp=2), 5)
    return ranks.must_train(make_run(tmp_path_factory.mktemp("replicas"), job), job)


def test_each_replica_writes_its_own_part(ranks: Ranks, inject: Inject, tmp_path: Path) -> None:
    job = job_at(layout(dp=4), 1)
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(ALONE))
    counts, _ = states_by_rank(run.checkpoint(LEG))
    stored = StoredWeights(run.checkpoint(LEG))
    states = sum(math.prod(stored.shape(key)) for key in stored.keys() if key.startswith("optimizer."))  # noqa: SIM118
    assert sum(counts.values()) == states
    assert sorted(counts) == [0, 1, 2, 3]
    assert max(counts.values()) == pytest.approx(states / 4, rel=0.03), "the end of a bucket may be padding"


def test_what_is_saved_is_what_megatron_core_saves(
    ranks: Ranks, replicas: RunDir, inject: Inject, tmp_path: Path
) -> None:
    """The same keys and values; and each goes on from the other's."""
    job = job_at(layout(dp=2), 2)
    other = ranks.must_train(make_run(tmp_path, job), job, inject=inject(GATHERED))
    gathered, own = other.checkpoint(LEG), replicas.checkpoint(LEG)
    assert states_by_rank(own)[1] > 0, "a part begins within a row"
    assert states_by_rank(gathered)[1] == 0
    ours, theirs = StoredWeights(own), StoredWeights(gathered)
    assert ours.keys() == theirs.keys()
    assert ours.objects() == theirs.objects()
    for key in ours.keys():  # noqa: SIM118 - it is no mapping
        assert torch.equal(ours.read(key, ()), theirs.read(key, ())), key
    expected = {step: loss for step, loss in losses(replicas).items() if LEG < step <= 2 * LEG}
    for name, source, how in (("read", gathered, None), ("gathered", own, inject(GATHERED))):
        run = make_run(tmp_path / name, job)
        shutil.copytree(source, run.checkpoint(LEG))
        ranks.must_train(run, job, inject=how)
        assert losses(run) == expected
        assert weights_apart(other, run, BITWISE) == {}


def test_any_layout_goes_on_from_any_other(ranks: Ranks, replicas: RunDir, tmp_path: Path) -> None:
    tp2 = layout(tp=2, sequence_parallel=True)
    run = through(ranks, tmp_path, [layout(dp=2), layout(), layout(dp=2), tp2, layout(pp=2, dp=2)], {})
    assert largest_difference(losses(replicas), losses(run)) < 1e-5
    assert weights_apart(replicas, run) == {}


def test_experts_of_several_replicas(ranks: Ranks, tmp_path: Path) -> None:
    """Each expert is on two of the four replicas; then on all ranks of a sequence that is split."""
    alone = ranks.undisturbed(job_at(layout(), 4, EXPERTS), tmp_path / "alone")
    split = layout(dp=2, context_parallel_size=2, **EP2)
    run = through(ranks, tmp_path, [layout(dp=4, **EP2), layout(), split, layout(dp=2, **EP2)], EXPERTS)
    assert largest_difference(losses(alone), losses(run)) < 1e-5
    assert weights_apart(alone, run) == {}


def test_a_replica_may_have_no_part(ranks: Ranks, tmp_path: Path) -> None:
    """Two adapters of 16 weights each, in a bucket that is mostly padding."""
    narrow = {"rank": 1, "target_modules": ["linear_proj"]}
    model = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "lora": narrow}
    alone = ranks.undisturbed(job_at(layout(), 3, model), tmp_path / "alone")
    run = through(ranks, tmp_path, [layout(dp=4), layout(dp=4), layout()], model)
    assert 1 <= len(states_by_rank(run.checkpoint(LEG))[0]) < 4
    assert largest_difference(losses(alone), losses(run)) < 1e-5
    assert weights_apart(alone, run) == {}
