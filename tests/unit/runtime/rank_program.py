"""Runs one function of this file as a rank: `rank_program.py OUT FUNCTION`; writes OUT/rank-N.json."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import json
import os
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.pipeline_parallel.schedules import deallocate_output_tensor
from megatron.core.tensor_parallel import mappings
from support.matrix import FAMILIES, matrix_job
from support.training import four_layer_job, layout
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.errors import UserError
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.checkpoints import commit_markers
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.checkpointing.newest_across_ranks import newest_whole
from orchestrator.runtime.network.communicators import connect
from orchestrator.runtime.network.model import build_chunks, transformer_config, wrap_data_parallel
from orchestrator.runtime.optimizer_step import build_optimizer, parts_of
from orchestrator.runtime.processes import cpu_shim
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.process_groups import (
    Ranks,
    connect_stages,
    seed_everything,
    start_process_groups,
    stop_process_groups,
)
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.runtime.startup import take_lease


def control() -> Any:
    """What two ranks agree on."""
    dist.init_process_group("gloo")
    rank, exchange = dist.get_rank(), Control(dist.group.WORLD, parts=2, auxiliary=1)
    found: dict[str, Any] = {"nothing offered": exchange.wait()}
    loss = torch.tensor([[12.0, 4.0], [5.0, 2.0]]) if rank == 1 else None
    auxiliary = torch.tensor([[1.0 + rank, 2.0]])
    exchange.begin_all_reduce(7, stop=rank == 1, loss=loss, writer_busy=True, save=rank == 0, auxiliary=auxiliary)
    agreed = exchange.wait()
    assert agreed is not None
    found["agreed"] = [agreed.iteration, agreed.stop, agreed.sums, agreed.writers_busy, agreed.save]
    found["auxiliary"] = agreed.auxiliary
    found["taken once"] = exchange.wait()
    quiet = exchange.exchange(8)
    found["quiet"] = [quiet.iteration, quiet.stop, quiet.sums, quiet.writers_busy, quiet.save]
    found["any"] = [exchange.any(rank == 1), exchange.any(False)]
    found["met"] = met(rank, exchange, Path(sys.argv[1]) / "left-alone")
    found["from first"] = exchange.from_first({"rank": rank})
    found["gathered"] = exchange.gather_to_first(rank * 10)
    found["unequal parts"] = unequal_parts(rank)
    dist.destroy_process_group()
    return found


def refused_leases(folder: Path) -> list[str]:
    """What each rank is told where rank 0 can take no lease: the last number is taken, or the newest is no file."""
    dist.init_process_group("gloo")
    ranks, exchange = types.SimpleNamespace(is_first=dist.get_rank() == 0), Control(dist.group.WORLD)
    used_up, damaged = RunDir(folder / "used-up"), RunDir(folder / "damaged")
    if ranks.is_first:
        used_up.lease.mkdir(parents=True)
        (used_up.lease / "999999999.json").touch()
        (used_up.lease / "999999999.released").touch()
        (damaged.lease / "000001.json").mkdir(parents=True)
    told = []
    for run in (used_up, damaged):
        try:
            take_lease(run, ranks, exchange, "launch")  # type: ignore[arg-type] # only what it asks of it
        except (UserError, OSError) as error:
            told.append(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()
    return told


def met(rank: int, exchange: Control, left_alone: Path) -> list[bool]:
    """Whether the ranks meet: at first rank 1 does not come, until rank 0 has given up; then it does."""
    if rank == 0:
        found = [exchange.met(within=0.2)]
        left_alone.touch()
    else:
        while not left_alone.exists():
            time.sleep(0.01)
        found = [exchange.met()]
    return [*found, exchange.met(within=60.0)]


def unequal_parts(rank: int) -> Any:
    """Whether gloo gathers parts of one and two rows by itself, and what the shim's two functions make of them."""
    mine, parts = torch.arange(1.0 + rank), [torch.empty(1), torch.empty(2)]
    try:
        dist.all_gather(parts, mine)
        refused = False
    except (RuntimeError, ValueError):
        refused = True
    owner = types.SimpleNamespace(_gather_along_first_dim=None, _reduce_scatter_along_first_dim=None)
    functions = {name: getattr(mappings, name) for name in vars(owner)}
    vars(owner).update(functions)
    cpu_shim.patch_megatron_mappings(owner)
    gathered = owner._gather_along_first_dim(mine, dist.group.WORLD, [1, 2])
    reduced = owner._reduce_scatter_along_first_dim(gathered, dist.group.WORLD, [1, 2])
    return [refused, gathered.tolist(), reduced.tolist()]


def weights(tp: int, pp: int, vp: int | None, seed: int = 7) -> dict[str, Any]:
    """Digest of every slice this rank holds: {key: [[global offset, first and last value, sum, shape], …]}."""
    model = {"activation": "swiglu", "num_query_groups": 2, "vocab_size": 250, "qk_layernorm": True}
    parallelism = layout(tp=tp, pp=pp, vp=vp)
    job = four_layer_job("weights", model=model, parallelism=parallelism, runtime={"seed": seed})
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, _ = start_process_groups(job, device, timeout_seconds=60)
    seed_everything(job.runtime.seed, ranks)
    config = transformer_config(job, device, "torch")
    chunks = build_chunks(job, config, device, "torch", vocabulary(job), ranks)
    found = []
    for chunk in chunks:
        for value in chunk.sharded_state_dict().values():
            for shard in parts(value):
                found.append([shard.key, list(shard.global_offset), shard.prepend_axis_num, shard.data.tolist()])
    stop_process_groups()
    return {"shards": found, "padded": vocabulary(job).padded_size}


def connected(model: dict[str, Any], degrees: dict[str, Any], **sections: Any) -> Any:
    """The ranks of the groups that are connected for a real model, and of those that the end of a step is the first to
    use all the same. A CPU stands for the GPU: its groups send too.
    """
    job, cpu = (
        four_layer_job("connected", model=model, parallelism=layout(**degrees), **sections),
        select_device("cpu", 1),
    )
    megatron_compat.apply(cpu)
    ranks, _ = start_process_groups(job, cpu, timeout_seconds=60)
    seed_everything(job.runtime.seed, ranks)
    used: list[Any] = []
    for name in ("all_reduce", "broadcast", "_reduce_scatter_base", "reduce_scatter_tensor", "_all_gather_base"):
        setattr(dist, name, _noting(getattr(dist, name), used))
    config = transformer_config(job, cpu, "torch")
    chunks = wrap_data_parallel(job, config, build_chunks(job, config, cpu, "torch", vocabulary(job), ranks))
    optimizer: Any = build_optimizer(job, chunks)
    built = len(used)
    connect(chunks, parts_of(optimizer), replace(cpu, kind="cuda"))
    before = len(used)
    config.finalize_model_grads_func(chunks, torch.tensor(1) if config.calculate_per_token_loss else None)
    optimizer.step()
    late = [group for group in used[before:] if group not in used[:before]]
    found = [[dist.get_process_group_ranks(group) for group in groups] for groups in (used[built:before], late)]
    stop_process_groups()
    return found


def _noting(collective: Any, used: list[Any]) -> Any:
    """It, with the group of each call kept."""

    def noted(*arguments: Any, **options: Any) -> Any:
        used.append(options.get("group") or dist.group.WORLD)
        return collective(*arguments, **options)

    return noted


EXPERTS = {"num_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}


def parts(value: Any) -> list[ShardedTensor]:
    if isinstance(value, ShardedTensorFactory):
        return [part for built in value.build() for part in parts(built)]
    return [value] if isinstance(value, ShardedTensor) and value.data is not None else []


def stored() -> dict[str, dict[str, list[int]]]:
    """The shape of each weight as a checkpoint holds it, by its key, in one rank's network of each family."""
    families = [family for family, model in FAMILIES.items() if model.get("architecture") != "mamba"]  # needs mamba-ssm
    jobs = {family: matrix_job(family, "fp32", "nowhere", {}) for family in families}
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, _ = start_process_groups(jobs["gpt"], device, timeout_seconds=60)
    seed_everything(1, ranks)
    found = {}
    for family, job in jobs.items():
        config = transformer_config(job, device, "torch")
        [chunk] = build_chunks(job, config, device, "torch", vocabulary(job), ranks)
        shards = [shard for value in chunk.sharded_state_dict().values() for shard in parts(value)]
        found[family] = {shard.key: list(shard.global_shape) for shard in shards}
    stop_process_groups()
    return found


def verification(out: Path) -> Any:
    """Finding the newest whole of three checkpoints: one whole, one with a changed byte, one torn."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    exchange, run = Control(dist.group.WORLD), RunDir(out / "run")
    if rank == 0:
        for iteration in (10, 20, 30):
            folder = run.checkpoint(iteration)
            folder.mkdir(parents=True)
            for number in range(6):
                (folder / f"file{number}").write_bytes(bytes([iteration]) * 1000 * (number + 1))
            if iteration != 30:
                files = {path.name: commit_markers.file_record(path) for path in folder.iterdir()}
                commit_markers.write_commit(folder, iteration=iteration, consumed_samples=0, files=files)
        (run.checkpoint(20) / "file4").write_bytes(b"x" * 5000)
    exchange.barrier()
    read: list[str] = []
    original = commit_markers.verify_file

    def counted(path: Path, *arguments: Any) -> str | None:
        read.append(f"{path.parent.name}/{path.name}")
        return original(path, *arguments)

    commit_markers.verify_file = counted
    skipped: list[list[str]] = []
    ranks = Ranks(rank, size, 0, 1, 0, 1, rank, size, 1)
    commit = newest_whole(run, exchange, ranks, lambda path, message: skipped.append([path.name, message]))
    dist.destroy_process_group()
    return {"found": commit and commit.iteration, "skipped": skipped, "read": read}


def sent_and_freed() -> Any:
    """What the later stages receive of 32 MB each that the stage before has begun to send, and freed as an interleaved
    schedule does, before they listen.
    """
    job, device = four_layer_job("sent", parallelism=layout(pp=4)), select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, groups = start_process_groups(job, device, timeout_seconds=60)
    connect_stages(ranks, groups, device)
    config = transformer_config(job, device, "torch")
    config.batch_p2p_comm, config.deallocate_pipeline_outputs = False, True
    stages, found, shape = P2PCommunicator(groups.pipeline, config), [], (1 << 23,)
    if ranks.pp > 0:
        time.sleep(1.0)
        received, handles = stages.send_forward_recv_forward(None, True, shape, overlap_p2p_comm=True)
        handles["recv_prev"].wait()
        found = received.unique().tolist()
    if not ranks.is_last_stage:
        output = torch.full(shape, 1.0 + ranks.pp, requires_grad=True)
        stages.send_forward_recv_forward(output, False, shape, overlap_p2p_comm=True)
        deallocate_output_tensor(output, True)
        torch.full(shape, 77.0)
    stop_process_groups()
    return found


def divided() -> Any:
    """What is left of gradients of 12, on two stages of two replicas, where their last ones counted 4 and 2 tokens and
    then none; and what the host was told of them meanwhile.
    """
    untied = {"untie_embeddings_and_output_weights": True}  # a table on both stages has the sum of both gradients
    whole = {"use_distributed_optimizer": False}  # of gradients that are shared out the rest is left as it was
    job, device = (
        four_layer_job("divided", model=untied, parallelism=layout(pp=2, dp=2, **whole)),
        select_device("cpu", threads=1),
    )
    megatron_compat.apply(device)
    ranks, _ = start_process_groups(job, device, timeout_seconds=60)
    seed_everything(job.runtime.seed, ranks)
    config = transformer_config(job, device, "torch")
    chunks = build_chunks(job, config, device, "torch", vocabulary(job), ranks)
    wrapped = wrap_data_parallel(job, config, chunks)
    found = []
    for tokens in (4 - 2 * ranks.dp, 0):
        for chunk in wrapped:
            for parameter in chunk.parameters():
                parameter.main_grad.fill_(12.0)
        told = Told()
        with told:
            config.finalize_model_grads_func(wrapped, torch.tensor(tokens if ranks.is_last_stage else 99))
        values = {
            value for chunk in wrapped for each in chunk.parameters() for value in each.main_grad.unique().tolist()
        }
        found.append([sorted(values), told.values])
    stop_process_groups()
    return found


class Told(TorchDispatchMode):
    """How many values of tensors the host asks for: on a GPU it would wait for each."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.values += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def made_on_meta() -> dict[str, list[str]]:
    """Where tensors are made with the shim: in the context of another device, and where CUDA is asked for or meant."""
    cpu_shim.install()
    with torch.device("meta"):
        made = [torch.zeros(2), torch.tensor([1.0])]
    others = [torch.zeros(2, device="cuda"), getattr(torch, cpu_shim.FACTORIES[0])(1)]
    return {"in the context": kinds(made), "else": kinds(others)}


def kinds(tensors: list[torch.Tensor]) -> list[str]:
    return sorted({each.device.type for each in tensors})


def compiled_before_the_shim() -> list[float]:
    """What a function gives that was to be compiled before the shim came, and how many graphs were made of it."""
    import torch._dynamo

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plus_one: Any = torch.compile(lambda x: x + 1, backend=backend)
    cpu_shim.install()
    return [plus_one(torch.ones(1)).item(), len(graphs)]


def images_of_any_size() -> dict[str, float]:
    """Of a large image and a hundred small ones, each in a row of its own: how many numbers the largest tensor of both
    passes has for each patch, and how far embeddings and gradients are from those of each image alone.
    """
    job, device = four_layer_job("native", model=FAMILIES["native"]), select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, _ = start_process_groups(job, device, timeout_seconds=60)
    seed_everything(job.runtime.seed, ranks)
    [chunk] = build_chunks(job, transformer_config(job, device, "torch"), device, "torch", vocabulary(job), ranks)
    encoder = chunk.vision
    grids = torch.tensor([[32, 30], *[[2, 2 + 2 * (number % 2)] for number in range(100)]])[:, None]
    patches = grids.prod(dim=-1).flatten().tolist()
    rows = [(torch.arange(48 * count) * 37 % 251).to(torch.uint8) for count in patches]
    with Largest() as largest:
        together = encoder(rows, grids)
        wanted = together.detach().sin()
        gradients = torch.autograd.grad(together, list(encoder.parameters()), wanted)
    alone = [encoder([row], grid[None]) for row, grid in zip(rows, grids, strict=True)]
    summed = torch.autograd.grad(torch.cat(alone), list(encoder.parameters()), wanted)
    apart = [((one - other).norm() / other.norm()).item() for one, other in zip(gradients, summed, strict=True)]
    stop_process_groups()
    return {
        "numbers per patch": largest.numbers / sum(patches),
        "embeddings": (together - torch.cat(alone)).abs().max().item(),
        "spread": together.std().item(),
        "gradients": max(apart),
    }


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that anything makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            self.numbers = max(self.numbers, each.numel() if isinstance(each, torch.Tensor) else 0)
        return made


FUNCTIONS = {
    "stored": stored,
    "images-of-any-size": images_of_any_size,
    "compiled-before-the-shim": compiled_before_the_shim,
    "made-on-meta": made_on_meta,
    "connected-stages": lambda: connected({"num_layers": 2}, {"pp": 2, "dp": 2}),
    "connected-by-tokens": lambda: connected({}, {"pp": 2, "vp": 2}, data={"eod_mask_loss": True}),
    "connected-hybrid": lambda: connected({}, {"dp": 4, "fsdp": 2}, data={"eod_mask_loss": True}),
    "connected-experts": lambda: connected(EXPERTS, {"dp": 4, "expert_model_parallel_size": 2}),
    "divided": divided,
    "sent-and-freed": sent_and_freed,
    "verification": lambda: verification(Path(sys.argv[1])),
    "control": control,
    "refused-leases": lambda: refused_leases(Path(sys.argv[1])),
    "one": lambda: weights(1, 1, None),
    "other-seed": lambda: weights(1, 1, None, seed=8),
    "tp2": lambda: weights(2, 1, None),
    "pp2-interleaved": lambda: weights(1, 2, 2),
}


def main() -> int:
    _, out, name = sys.argv
    Path(out, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(FUNCTIONS[name]()))
    return 0
