"""The order of passes that the plan draws and times is the one that the ranks of a training run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Ranks
from support.training import layout, make_run, tiny_job

from orchestrator.planning.layout.pipeline import passes_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300), pytest.mark.slow("starts real ranks")]

RECORDER = """
from orchestrator.runtime.callbacks.saving import CheckpointSaving
CheckpointSaving.on_end = lambda saving, session: None  # nobody looks at a checkpoint
from megatron.core.pipeline_parallel import schedules
_passes, _outputs, _chunks = [], {}, {}
_forward, _backward = schedules.forward_step, schedules.backward_step
def forward_step(step, data, model, *rest, **more):
    result = _forward(step, data, model, *rest, **more)
    chunk = _chunks.setdefault(id(model), len(_chunks))
    number = sum(kind and of == chunk for kind, of, _ in _passes)
    output = result[0][0] if isinstance(result[0], list) else result[0]
    _outputs[id(output)] = (chunk, number, output)
    _passes.append((True, chunk, number))
    return result
def backward_step(inputs, output, *rest, **more):
    chunk, number, _ = _outputs[id(output[0] if isinstance(output, list) else output)]
    _passes.append((False, chunk, number))
    result = _backward(inputs, output, *rest, **more)
    with open(f"{sys.argv[1]}/passes-{RANK}.json", "w") as file:
        __import__("json").dump(_passes, file)
    return result
schedules.forward_step, schedules.backward_step = forward_step, backward_step
"""


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(3, 1, 5), (2, 2, 6), (3, 2, 6)])
def test_ranks_run_the_passes_in_this_order(
    ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path, stages: int, chunks: int, micro_batches: int
) -> None:
    job = tiny_job(
        "order",
        model={"num_layers": stages * chunks},
        parallelism=layout(pp=stages, vp=chunks if chunks > 1 else None),
        batch={"micro_batch_size": 1, "global_batch_size": micro_batches},
        schedule={"train_iters": 1, "lr_warmup_iters": 0},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(RECORDER))
    for stage in range(stages):
        recorded = json.loads((run.path / f"passes-{stage}.json").read_text())
        assert recorded == [list(each) for each in passes_of(stage, stages, chunks, micro_batches)]
