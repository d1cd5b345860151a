"""The search finds what trying every layout finds, and everything that it proposes is right."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.layouts import GIB, everything

from orchestrator.errors import SpecError
from orchestrator.planning.hardware import device_named
from orchestrator.planning.memory.fit import TIGHT
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_job
from orchestrator.tuning.estimates import PlanEstimates
from orchestrator.tuning.layout import Layout, on_machines, with_layout
from orchestrator.tuning.overlay import overlay_text
from orchestrator.tuning.search import search
from orchestrator.tuning.space import Space

Spaces = Callable[..., Space]

H100 = device_named("H100")

MODELS = st.fixed_dictionaries(
    {
        "hidden_size": st.sampled_from([1024, 2048, 4096]),
        "num_attention_heads": st.sampled_from([8, 16, 32]),
        "seq_length": st.sampled_from([1024, 2048, 4096]),
        "vocab_size": st.sampled_from([32000, 128256]),
        "activation": st.sampled_from(["gelu", "swiglu"]),
    }
)


@st.composite
def tasks(
    draw: st.DrawFn,
    layers: Sequence[int] = (4, 6, 8),
    batches: Sequence[int] = (8, 12, 32),
    gpus: Sequence[int] = (1, 2, 4, 8),
) -> tuple[Space, PlanEstimates]:
    """A job with a layout of its own, on as many GPUs as it is to be tuned for, which may be too small for it."""
    tp, pp, dp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    document: dict[str, Any] = {
        "name": "job",
        "model": {**draw(MODELS), "num_layers": draw(st.sampled_from(layers))},
        "parallelism": {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "sequence_parallel": tp > 1 and draw(st.booleans()),
            "tp_comm_overlap": draw(st.sampled_from([True, False, None])),
        },
        "batch": {
            "micro_batch_size": draw(st.sampled_from([1, 2])),
            "global_batch_size": draw(st.sampled_from(batches)),
        },
        "data": {"random_tokens": True},
        "optimizer": {"lr": 1e-3},
        "schedule": {"train_iters": 10},
        "launch": {"gpus_per_node": tp * pp * dp},
    }
    try:
        job = JobSpec.model_validate(document)
    except SpecError:
        assume(False)
    gib = draw(st.sampled_from([4, 8, 16, 80]))
    device = replace(H100, memory_bytes=gib * GIB)
    estimates = PlanEstimates(device, draw(st.sampled_from(["torch", "transformer_engine"])), job.model.vocab_size or 0)
    return Space(on_machines(job, 1, draw(st.sampled_from(gpus)))), estimates


@settings(max_examples=examples(6))  # each of them tries hundreds of layouts; on 8 GPUs, as below, it were thousands
@given(task=tasks(layers=(4, 6), batches=(8, 12), gpus=(1, 2, 4)))
def test_the_search_finds_the_best_of_all_layouts(task: tuple[Space, PlanEstimates]) -> None:
    space, estimates = task
    found, best = search(space, estimates), _fastest_of_all(space, estimates)
    if best is None:
        assert not found.fitting or found.fitting[0] == found.own
        return
    # Single switches are turned for the fastest few only: what that can miss is small.
    assert found.fitting[0].step_seconds <= best * 1.001


def _fastest_of_all(space: Space, estimates: PlanEstimates) -> float | None:
    """Seconds of a step; None where nothing fits."""
    usable = (estimates.memory_bytes or 0) * TIGHT
    jobs = (estimates.settled(with_layout(space.job, layout)) for layout in everything(space))
    fitting = (job for job in jobs if estimates.memory(job).device_bytes <= usable)
    return min((estimates.time(job).step_seconds for job in fitting), default=None)


SWITCHES = frozenset({"overlap_grad_reduce", "use_distributed_optimizer"})
"""Of neither recomputation nor activations: without them there is a quarter of the layouts."""


@pytest.mark.parametrize(
    ("gpus", "layers", "model"),
    [
        (2, "torch", {"num_layers": 6, "hidden_size": 2048, "num_attention_heads": 8}),
        (8, "transformer_engine", {"num_layers": 6, "hidden_size": 4096, "seq_length": 2048}),
        (4, "transformer_engine", {"vocab_size": 128256}),
    ],
    ids=["without sequence parallelism a layer is recomputed", "without it more sequences fit", "graphs fit"],
)
def test_more_recomputation_and_whole_activations_can_be_faster(
    space: Spaces, gpus: int, layers: Any, model: dict[str, Any]
) -> None:
    """On 8 GiB, by 4 %, 19 % and 10 % than what has the least recomputation and sequence parallelism."""
    batch = {"global_batch_size": 32 if gpus == 8 else 12}
    wanted = space(gpus=gpus, kept=SWITCHES, model=model, batch=batch)
    estimates = PlanEstimates(replace(H100, memory_bytes=8 * GIB), layers, wanted.job.model.vocab_size or 0)
    assert search(wanted, estimates).fitting[0].step_seconds == _fastest_of_all(wanted, estimates)


@settings(max_examples=examples(15))
@given(task=tasks())
def test_what_is_proposed_is_legal_fits_and_trains_the_same(task: tuple[Space, PlanEstimates]) -> None:
    space, estimates = task
    found = search(space, estimates)
    for candidate in found.fitting[:10]:
        overlaid = _overlaid(space.job, candidate.layout)
        assert overlaid == JobSpec.model_validate(candidate.job.model_dump())
        assert overlaid.global_batch_size == space.job.global_batch_size
        assert overlaid.world_size == space.job.world_size
        assert overlaid.model == space.job.model
        assert candidate.device_bytes <= (estimates.memory_bytes or 0)
    if found.own is not None and found.own.device_bytes <= (estimates.memory_bytes or 0):
        assert found.fitting[0].step_seconds <= found.own.step_seconds


def _overlaid(job: JobSpec, layout: Layout) -> JobSpec:
    """The job as `orchestrator run job.yaml overlay.yaml` loads it."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "job.yaml"), Path(folder, "overlay.yaml")]
        files[0].write_text(dump_resolved(job))
        files[1].write_text(overlay_text(layout, job, ["why"]))
        return load_job(files).job
