"""One rank of a job that needs more GPUs than there are, with nobody beside it: how long its GPU computes, how long its
host takes to start that, and what it takes of memory.

    PYTHONPATH=tests python tests/benchmarks/one_rank.py ROW RANK [KEY=VALUE...]

ROW is one of `support.peer.ROWS`, or a YAML file. The process believes in its peers: of what they would send, gathered
parts are copies of its own, sums stay what they are, and a stage receives the same noise each time; it reads tokens of
its own part of the table alone, since a row that another rank has would be zeros here. So its losses are nobody's; its
kernels are those of the real training, and beside them one copy for each collective. Tensor parallelism does not
overlap here, and what is reduced or sent takes no time. Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from orchestrator.bench.measurement import MeasurementRequest, new_run
from orchestrator.errors import UserError
from orchestrator.kernel_selection.auto_values import settled
from orchestrator.planning.estimates import DeviceEstimates, machine_of
from orchestrator.planning.hardware import device_named
from orchestrator.planning.time import estimate_time
from orchestrator.run_directory.events.types import StepSkipped
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

REQUEST = MeasurementRequest(warm_up=4, steps=12)
APART = ("parallelism.tp_comm_overlap=false", "tracking.mlflow=false", "runtime.max_bad_steps=1000000")
"""User buffers are set up by all ranks; and gradients of noise need not be finite."""
STILL = ("optimizer.lr=1e-9", "optimizer.min_lr=0")
"""Weights stay as they were made, so that numbers do too: a GPU computes as fast as its power limit lets it."""
OF_OTHERS = (
    *("tensor_parallel", "context_parallel", "expert_parallel", "data_parallel"),
    *("pipeline_transfer", "bubble"),
)
"""Parts of a planned step that a rank has through the others."""


class Done:
    """A collective that has ended."""

    def wait(self, *options: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def gather(output: torch.Tensor, own: torch.Tensor, group: Any = None, async_op: bool = False) -> Done | None:
    """A part of the output is gathered in place: then the others' are there, from the start."""
    if output.untyped_storage().data_ptr() != own.untyped_storage().data_ptr():
        for part in output.view(-1, own.numel()):
            part.copy_(own.reshape(-1))
    return Done() if async_op else None


def scatter(
    output: torch.Tensor, whole: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
) -> Any:
    """This rank's part, as it is."""
    parts = whole.view(-1, output.numel())
    part = parts[dist.get_rank(group) % len(parts)]
    if part.data_ptr() != output.data_ptr():
        output.view(-1).copy_(part)
    return Done() if async_op else None


class Noise:
    """What a stage receives."""

    def __init__(self) -> None:
        self._made: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def receive(self, tensor: torch.Tensor, *where: Any, **options: Any) -> Done:
        if tensor.is_floating_point():
            key = (tensor.shape, tensor.dtype)
            if key not in self._made:
                self._made[key] = (0.1 * torch.randn(tensor.shape, device=tensor.device)).to(tensor.dtype)
            tensor.detach().copy_(self._made[key])
        return Done()


class Operation:
    """torch's P2POp, of whatever is there in place of its two operations."""

    def __init__(self, op: Any, tensor: torch.Tensor, *where: Any, **options: Any) -> None:
        self.op, self.tensor = op, tensor


@contextlib.contextmanager
def coalesced(*of: Any, **options: Any) -> Iterator[Done]:
    """Several collectives as one."""
    yield Done()


def be_alone(rank: int, world_size: int) -> None:
    """Before anything that imports megatron-core."""
    noise, init, new_group = Noise(), dist.init_process_group, dist.new_group

    def send(tensor: torch.Tensor, *where: Any, **options: Any) -> Done:
        return Done()

    def batch(operations: list[Operation]) -> list[Done]:
        return [operation.op(operation.tensor) for operation in operations]

    def gather_objects(value: Any, box: list[Any] | None = None, **options: Any) -> None:
        if box is not None:
            box[:] = [value] * len(box)

    stand_ins: dict[str, Any] = {
        "init_process_group": lambda *given, **options: init(
            "fake", rank=rank, world_size=world_size, store=FakeStore()
        ),
        "new_group": lambda ranks=None, **options: new_group(ranks, backend="fake"),
        "all_gather_into_tensor": gather,
        "_all_gather_base": gather,
        "reduce_scatter_tensor": scatter,
        "_reduce_scatter_base": scatter,
        "irecv": noise.receive,
        "recv": noise.receive,
        "isend": send,
        "send": send,
        "P2POp": Operation,
        "batch_isend_irecv": batch,
        "broadcast_object_list": lambda *given, **options: None,
        "gather_object": gather_objects,
        "all_gather_object": lambda box, value, **options: gather_objects(value, box),
    }
    vars(dist).update(stand_ins)
    vars(dist)["_coalescing_manager"] = vars(distributed_c10d)["_coalescing_manager"] = coalesced
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK="0")


def without_gloo() -> None:
    """megatron-core makes groups on the host as well."""
    from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

    from megatron.core import parallel_state  # isort: skip

    from orchestrator.runtime.processes import gloo, process_groups

    start = parallel_state.initialize_model_parallel
    of_megatron, of_groups = vars(parallel_state), vars(process_groups)
    of_megatron["initialize_model_parallel"] = lambda **degrees: start(**degrees, create_gloo_process_groups=False)
    for name in ("get_data_parallel_group_gloo", "get_expert_data_parallel_group_gloo"):
        of_megatron[name] = lambda *given, **options: None
    of_groups["_connected_when_used"] = contextlib.nullcontext
    vars(gloo)["wait_for_a_free_core"] = lambda: None


def read_own_tokens(parts: int) -> None:
    """Of the first of so many parts of the table."""
    from orchestrator.runtime import startup

    class OfOwn(startup.RandomTokens):
        def __init__(self, vocab_size: int, *given: Any) -> None:
            super().__init__(vocab_size // parts, *given)

    vars(startup)["RandomTokens"] = OfOwn


def measured(run: RunDir, errors: Any) -> dict[str, Any]:
    """What `bench` finds of this rank, which writes for all. What it prints from its start on is in the run's log."""
    from orchestrator.runtime.__main__ import main
    from orchestrator.runtime.bench.__main__ import callbacks
    from orchestrator.runtime.processes.process_groups import Ranks
    from orchestrator.runtime.processes.rank_agreement import Control

    control: Any = Control
    ranks: Any = Ranks
    end = os._exit

    def tell_and_end(code: int) -> None:
        print(run.rank_log(int(os.environ["RANK"])).read_text()[-4000:], file=errors, flush=True)
        end(code)

    control.gather_to_first = lambda self, value: [value]
    ranks.is_first = property(lambda self: True)
    vars(os)["_exit"] = tell_and_end  # how a rank ends that failed
    sys.argv[1:] = [str(run.path)]
    main(callbacks)
    vars(os)["_exit"] = end
    result: dict[str, Any] = json.loads(run.bench_result.read_text())
    return result


def planned(job: JobSpec, padded_vocab: int, layers: Any, gpu: str) -> dict[str, float] | None:
    """Milliseconds of each part on the slowest stage, where the plan knows the GPU."""
    try:
        device = device_named(gpu)
    except UserError:
        return None
    job = settled(job, layers, machine_of(device), DeviceEstimates(padded_vocab, device))
    parts = estimate_time(job, padded_vocab, layers, device).parts
    return {name: 1e3 * seconds for name, seconds in parts.items() if name not in OF_OTHERS and seconds}


def job_of(row: str, changes: list[str]) -> JobSpec:
    """The job that is measured."""
    steps, more = REQUEST.all_steps, (*APART, *STILL, *changes)
    if row.endswith((".yaml", ".yml")):
        return load_job([Path(row)], [*more, f"schedule.train_iters={steps}"]).job
    from support.peer import ROWS

    return ROWS[row].at_size(f"alone-{row}", steps, more)


def main() -> None:
    row, rank, *changes = sys.argv[1:]
    job = job_of(row, changes)
    be_alone(int(rank), job.world_size)
    without_gloo()
    read_own_tokens(job.parallelism.tensor_model_parallel_size)
    with tempfile.TemporaryDirectory() as folder, open(os.dup(1), "w") as out, open(os.dup(2), "w") as errors:
        run = new_run(job, REQUEST, Path(folder))
        found = measured(run, errors)
        [own] = found["ranks"]
        profile = own["profile"]
        said = {
            "row": row,
            "rank": int(rank),
            "milliseconds": round(1e3 * statistics.median(own["step_seconds"]), 1),
            "range": [round(1e3 * pick(own["step_seconds"]), 1) for pick in (min, max)],
            "skipped_updates": len(run.events().all(StepSkipped)),
            "peak_bytes": own["peak_bytes"],
            "parts": {name: round(1e3 * seconds, 1) for name, seconds in profile["parts"].items() if seconds},
            "planned": planned(job, found["padded_vocab"], found["layers"], found["device"]),
        }
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main()
