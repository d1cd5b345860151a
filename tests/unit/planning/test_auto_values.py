"""A job is planned as a start of it computed: by its attention, with graphs or without, overlapping or not."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.kernel_selection.auto_values import as_started
from orchestrator.planning.hardware import device_named
from orchestrator.planning.time import estimate_time

OVERLAPPING = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
WIDE = {"num_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096, "add_bias_linear": False}


@pytest.mark.parametrize("overlaps", [True, False, None])
def test_tensor_parallelism_that_did_not_overlap_is_waited_for(make_job: Any, overlaps: bool | None) -> None:
    job = make_job(model=WIDE, parallelism=OVERLAPPING, launch={"gpus_per_node": 2})
    started = as_started(job, {"tp_comm_overlap": overlaps})
    as_planned, as_it_was = (
        estimate_time(each, 51200, "transformer_engine", device_named("H100")).parts["tensor_parallel"]
        for each in (job, started)
    )
    assert (as_it_was > 1.2 * as_planned) == (overlaps is False)


@pytest.mark.parametrize(
    ("choices", "graphs", "attention"),
    [
        ({"cuda_graphs": True, "attention_backend": "flash"}, True, "flash"),
        ({"cuda_graphs": False, "attention_backend": "fused"}, False, "fused"),
        ({}, None, "auto"),
    ],
)
def test_what_was_not_said_stays_open(make_job: Any, choices: Any, graphs: bool | None, attention: str) -> None:
    runtime = as_started(make_job(), choices).runtime
    assert (runtime.cuda_graphs, runtime.attention_backend) == (graphs, attention)
