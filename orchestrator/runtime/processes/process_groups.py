"""The processes of a job and their groups. This alone makes and ends megatron-core's global parallel state, which
others only ask for groups.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch.distributed import distributed_c10d

from orchestrator.runtime.processes import gloo
from orchestrator.runtime.processes.device import Device
from orchestrator.spec.job import JobSpec

_FAILED = "failed"
"""A key of the groups' store: a process has left them after an error."""
_LOOK_SECONDS = 0.5
_aborting = threading.Lock()


@dataclass(frozen=True)
class Ranks:
    """Where this process stands."""

    rank: int
    world_size: int
    tp: int
    tp_size: int
    pp: int
    pp_size: int
    dp: int
    dp_size: int
    num_chunks: int
    cp: int = 0
    cp_size: int = 1

    @property
    def is_first(self) -> bool:
        """Rank 0: the one that writes events and metrics."""
        return self.rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp == self.pp_size - 1

    @property
    def reports_loss(self) -> bool:
        """The ranks of each replica's last stage that have losses of their own: one for each part of the sequence."""
        return self.is_last_stage and self.tp == 0

    def is_pre_process(self, chunk: int) -> bool:
        """Whether a model chunk holds the embedding."""
        return self.pp == 0 and chunk == 0

    def is_post_process(self, chunk: int) -> bool:
        """Whether a model chunk holds the output layer."""
        return self.is_last_stage and chunk == self.num_chunks - 1


@dataclass(frozen=True)
class Groups:
    """Process groups that the runtime itself communicates over."""

    control: dist.ProcessGroup
    """All ranks, gloo: small facts on the host, never through the GPU."""
    data_parallel: dist.ProcessGroup
    """Ranks that hold the same weights: of all replicas and, in each, of all parts of the sequence."""
    pipeline: dist.ProcessGroup
    store: distributed_c10d.Store
    """Where the job's processes have met."""
    aborted: threading.Event = field(default_factory=threading.Event)
    """Set by `end_waiting`: collectives of NCCL have ended without results since."""


def patience(job: JobSpec) -> float:
    """Seconds that ranks wait for each other: longer than the watchdog, which knows better what hangs."""
    return 2.0 * job.runtime.hang_timeout + 60


@contextlib.contextmanager
def _connected_when_used() -> Iterator[None]:
    """Groups that are made within get their communicator with their first collective.

    A world that is bound to a device has every group of it connected at once: on an H200 the groups that megatron-core
    makes took 0.4 GiB each, 7 GiB together, and a job uses a few of them.
    """
    world: Any = dist.group.WORLD
    bound = world.bound_device_id
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = bound


def start_process_groups(
    job: JobSpec, device: Device, timeout_seconds: float, store: distributed_c10d.Store | None = None
) -> tuple[Ranks, Groups]:
    """Join the job's processes and split them into tensor-, pipeline- and data-parallel groups.

    Reads RANK and WORLD_SIZE as torchrun sets them; alone, the process is a world of one. `store`: where processes meet
    that have left failed groups.
    """
    on_gloo = device.backend == "gloo"
    with gloo.few_threads() if on_gloo else contextlib.nullcontext():
        if on_gloo and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            gloo.wait_for_a_free_core()
        return _start(job, device, timeout_seconds, store)


def _start(
    job: JobSpec, device: Device, timeout_seconds: float, store: distributed_c10d.Store | None
) -> tuple[Ranks, Groups]:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    timeout = timedelta(seconds=timeout_seconds)
    extra: dict[str, Any] = {"device_id": device.torch_device} if device.is_cuda else {}
    if store is not None:
        extra["store"] = store
    elif "MASTER_ADDR" not in os.environ:
        extra["store"] = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(device.backend, rank=rank, world_size=world_size, timeout=timeout, **extra)
    parallelism = job.parallelism
    with _connected_when_used():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallelism.tensor_model_parallel_size,
            pipeline_model_parallel_size=parallelism.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=parallelism.virtual_pipeline_model_parallel_size,
            context_parallel_size=parallelism.context_parallel_size,
            num_distributed_optimizer_instances=job.sharded_copies,
            expert_model_parallel_size=parallelism.expert_model_parallel_size,
            expert_tensor_parallel_size=parallelism.expert_tensor_parallel,
            distributed_timeout_minutes=max(1, round(timeout_seconds / 60)),
        )
    ranks = Ranks(
        rank=rank,
        world_size=world_size,
        tp=parallel_state.get_tensor_model_parallel_rank(),
        tp_size=parallel_state.get_tensor_model_parallel_world_size(),
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        pp_size=parallel_state.get_pipeline_model_parallel_world_size(),
        dp=parallel_state.get_data_parallel_rank(),
        dp_size=parallel_state.get_data_parallel_world_size(),
        num_chunks=parallelism.num_model_chunks,
        cp=parallel_state.get_context_parallel_rank(),
        cp_size=parallel_state.get_context_parallel_world_size(),
    )
    groups = Groups(
        control=dist.new_group(backend="gloo", timeout=timeout),
        data_parallel=parallel_state.get_data_parallel_group(with_context_parallel=True),
        pipeline=parallel_state.get_pipeline_model_parallel_group(),
        store=distributed_c10d._get_default_store(),
    )
    return ranks, groups


def connect_stages(ranks: Ranks, groups: Groups, device: Device) -> None:
    """Let each stage of a pipeline meet its neighbours, both ways, before a schedule does.

    An interleaved schedule sends outside of batches, and such sends have a communicator of each two stages made with
    the first of them: a stage that waits there for a neighbour that waits for another one waits for ever. Here all take
    the pairs in one order. Two stages send one way over all ranks' group, as megatron-core has them do.
    """
    members = dist.get_process_group_ranks(groups.pipeline)
    token = torch.zeros(1, device=device.torch_device)
    ring = [(0, 1)] if ranks.pp_size == 2 else [(stage, (stage + 1) % ranks.pp_size) for stage in range(ranks.pp_size)]
    for one, other in ring:
        for group in (groups.pipeline, dist.group.WORLD) if ranks.pp_size == 2 else (groups.pipeline,):
            for source, target in ((one, other), (other, one)):
                if ranks.pp == source:
                    dist.send(token, dst=members[target], group=group)
                elif ranks.pp == target:
                    dist.recv(token, src=members[source], group=group)


def part_of_pipeline(ranks: Ranks, parts: Sequence[Sequence[int]], timeout_seconds: float) -> dist.ProcessGroup:
    """This rank's group where each pipeline is cut into parts, given by their stages. Every rank must call this."""
    stride = ranks.world_size // ranks.pp_size  # the stages are the outermost order of ranks
    own: dist.ProcessGroup | None = None
    for first in range(stride):
        for stages in parts:
            members = [first + stage * stride for stage in stages]
            group = dist.new_group(members, timeout=timedelta(seconds=timeout_seconds))
            if ranks.rank in members:
                own = group
    assert own is not None, "every stage is in a part"
    return own


def get_tensor_model_parallel_group() -> dist.ProcessGroup:
    """The ranks that this one's matrices are split over."""
    group: dist.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
    return group


def get_tensor_model_parallel_rank() -> int:
    """This rank's place in its tensor-parallel group, also inside a module that has no Ranks at hand."""
    rank: int = parallel_state.get_tensor_model_parallel_rank()
    return rank


def get_context_parallel_group() -> dist.ProcessGroup | None:
    """The ranks that share this one's sequences; None where no sequence is shared."""
    group: dist.ProcessGroup | None = parallel_state.get_context_parallel_group(check_initialized=False)
    return group if group is not None and group.size() > 1 else None


def seed_everything(seed: int, ranks: Ranks, *, for_graphs: bool = False) -> None:
    """Seed dropout: stages, replicas and parts of the sequence differ; tensor-parallel ranks differ only inside
    tensor-parallel regions. `for_graphs`: keep generators, from which a CUDA graph can draw, in place of their states.
    """
    own_seed = seed + 100 * ranks.pp + 10 * (ranks.dp * ranks.cp_size + ranks.cp) * 1009
    if torch.cuda.is_available():
        torch.manual_seed(own_seed)
    else:  # it would write down the stack for each kind of device that is not there, with the lines of its files
        torch.default_generator.manual_seed(own_seed)
    # What a process keeps was made for the first job that it seeded.
    tensor_parallel.model_parallel_cuda_manual_seed(own_seed, use_cudagraphable_rng=for_graphs, force_reset_rng=True)


def rng_generators() -> list[torch.Generator]:
    """Those that `seed_everything` keeps for graphs."""
    kept = tensor_parallel.get_cuda_rng_tracker().get_states().values()
    return [each for each in kept if isinstance(each, torch.Generator)]


def rng_state() -> dict[str, Any]:
    """Everything that dropout draws from, on this rank."""
    kept = tensor_parallel.get_cuda_rng_tracker().get_states()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "tracker": {
            name: each.get_state() if isinstance(each, torch.Generator) else each for name, each in kept.items()
        },
    }
    cuda: Any = torch.cuda
    if cuda.is_initialized():  # it is not where a run leaves the GPU alone
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned."""
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    tracker = tensor_parallel.get_cuda_rng_tracker()
    kept = tracker.get_states()
    for name, saved in state["tracker"].items():
        if isinstance(kept.get(name), torch.Generator):
            kept[name].set_state(saved)
        else:
            kept[name] = saved
    tracker.set_states(kept)


def stop_process_groups(*, after_error: bool = False) -> None:
    """Leave the job's processes. `after_error`: others may wait for this one in a collective, for which NCCL would wait
    in turn: its communicators are aborted.
    """
    if after_error and dist.is_initialized() and dist.get_backend() == "nccl":
        _abort_groups()
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_failed_groups(store: distributed_c10d.Store) -> distributed_c10d.Store:
    """Leave the job's processes after an error, while others may wait for this one in a collective. `store`: where they
    have met; returns where all meet again.

    What waits over gloo gets an error once nothing refers to this process's groups any more, and their connections are
    closed; what waits over NCCL, by `end_waiting`.
    """
    store.set(_FAILED, "1")
    stop_process_groups(after_error=True)
    return distributed_c10d.PrefixStore("again", store)


def _abort_groups() -> None:
    """End what this process does over NCCL; whoever calls second waits for the first.

    All groups at once: to abort one frees memory of the GPU, which waits for the kernels of the others, and
    `_abort_process_group` takes them one after the other (torch's backends abort in threads of their own, where NCCL's
    group calls around them have no effect).
    """
    with _aborting:
        if dist.is_initialized():
            groups = list(distributed_c10d._world.pg_names)
            with ThreadPoolExecutor(len(groups)) as pool:
                list(pool.map(dist.ProcessGroup.abort, groups))
            distributed_c10d._abort_process_group()


def end_waiting(device: Device, groups: Groups) -> None:
    """From now on, end what this process does over NCCL once another one has left failed groups: of a process that is
    gone from a collective on the same machine NCCL itself says nothing. What waits gets no error, but a result that is
    none: look at `groups.aborted` before one is used.
    """
    if not device.is_cuda:
        return

    def watch() -> None:
        try:
            while not groups.store.check([_FAILED]):
                time.sleep(_LOOK_SECONDS)
        except RuntimeError:
            return  # the store is gone, and the server with it
        groups.aborted.set()
        _abort_groups()

    threading.Thread(target=watch, daemon=True).start()
