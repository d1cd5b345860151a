"""Opens a session: joins the job's processes, takes the lease, builds the network, restores the newest checkpoint."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import megatron.core
import torch

from orchestrator.data.samples.datasets import Datasets, build_datasets
from orchestrator.data.samples.index_requests import sample_index_dir
from orchestrator.data.samples.position import DataPosition, position_of
from orchestrator.data.tasks.dataset import examples_line, open_task
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.kernel_selection.attention import with_attention
from orchestrator.kernel_selection.auto_values import depends_on_host
from orchestrator.planning.blend import samples_needed
from orchestrator.planning.flops import formula, model_flops, peak_flops
from orchestrator.planning.parameters.registry import parameters
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.hyperparameters import HyperparameterSchedule
from orchestrator.planning.vocabulary import Vocabulary, vocabulary
from orchestrator.run_directory.events.types import Hang, Resumed, Started
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.batch_sampler import RandomTokens
from orchestrator.runtime.checkpointing.checkpointer import Checkpointer
from orchestrator.runtime.checkpointing.parallel_layout import layout
from orchestrator.runtime.checkpointing.restoration import Restored, restore
from orchestrator.runtime.cuda_graphs import CapturedPasses, choose_graphs
from orchestrator.runtime.families.registry import family_of
from orchestrator.runtime.layers.attention.flash_availability import choose_attention
from orchestrator.runtime.layers.grouped_experts.expert_mlp import expert_products
from orchestrator.runtime.layers.grouped_experts.transformer_engine_products import multiply_in_one_kernel
from orchestrator.runtime.layers.layer_backend import choose_layers
from orchestrator.runtime.layers.transformer_engine.quantization import require_products
from orchestrator.runtime.layers.transformer_engine.tensor_overlap import begin_overlap
from orchestrator.runtime.network.auxiliary_losses import AuxiliaryLosses, auxiliary_losses
from orchestrator.runtime.network.communicators import connect
from orchestrator.runtime.network.gradient_reduction import loss_scaling
from orchestrator.runtime.network.model import build_chunks, parameter_count, transformer_config, wrap_data_parallel
from orchestrator.runtime.optimizer_step import build_optimizer, parts_of
from orchestrator.runtime.processes.device import Device, grow_in_place
from orchestrator.runtime.processes.exits import HANG_EXIT_CODE, Outcome, write_exit_record
from orchestrator.runtime.processes.host import slowest_start
from orchestrator.runtime.processes.process_groups import (
    Ranks,
    connect_stages,
    patience,
    seed_everything,
    start_process_groups,
)
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.runtime.processes.stop_request import StopRequest
from orchestrator.runtime.processes.watchdog import Watchdog
from orchestrator.runtime.rank import Launch, Processes
from orchestrator.runtime.records.environment import record_environment
from orchestrator.runtime.records.last_start import LastStart
from orchestrator.runtime.records.records import Records
from orchestrator.runtime.records.sources import record_sources
from orchestrator.runtime.records.start_clock import StartClock
from orchestrator.runtime.session import Network, Session, TrainingData
from orchestrator.runtime.state import TrainState
from orchestrator.runtime.steps.base import TrainStep, metrics_of
from orchestrator.runtime.steps.custom import custom_train_step
from orchestrator.self_contained_checkpoints import files_to_carry
from orchestrator.spec.job import JobSpec


def open_session(
    run: RunDir, job: JobSpec, device: Device, launch_id: str, from_scratch: bool, closing: ExitStack, clock: StartClock
) -> Session:
    """Join the job's processes, take the lease, build the network and restore the newest checkpoint.

    What has to be given up at the end, also when this fails half-way, is added to `closing`. Raises RunIsHeld,
    CheckpointError, DataError and UserError.
    """
    processes, step = _join(job, device)
    launch = _take_run(run, job, processes, launch_id, clock, closing)
    ranks, words = processes.ranks, vocabulary(job)
    network, host = _build_network(job, launch, processes, step, words, from_scratch, closing)
    code = {"megatron_core": megatron.core.__version__, "torch": torch.__version__}
    carried = files_to_carry(job) if ranks.is_first else {}
    modules, optimizer = network.modules, network.optimizer
    checkpointer = Checkpointer(job, launch, processes, modules, optimizer, code, carried)
    closing.callback(checkpointer.close)
    state = TrainState()
    restored = restore(job, words, launch, processes, checkpointer, modules, optimizer, state, from_scratch)
    clock.ends("checkpoint")
    schedule, datasets = open_data_at(job, run, words, state, restored.position, processes.groups.control)
    assert datasets.train is not None, "the schedule has at least one step"
    if ranks.is_first:
        record_sources(run, launch.lease, job)
    clock.ends("data")
    rates = HyperparameterSchedule.of(job, schedule)
    data = TrainingData(words, schedule, rates, datasets.train, dict(datasets.validation))
    session = Session(job, launch, processes, network, data, checkpointer, state)
    _tell_of_the_start(session, restored, host)
    return session


def _join(job: JobSpec, device: Device) -> tuple[Processes, TrainStep]:
    """Join the job's processes. What they exchange after each step depends on what a step reports."""
    grow_in_place(device)
    megatron_compat.apply(device)
    megatron_compat.rotate_in_one_kernel(device)
    megatron_compat.deterministic_algorithms(job.runtime.deterministic)
    ranks, groups = start_process_groups(job, device, timeout_seconds=patience(job))
    if device.is_cuda and ranks.num_chunks > 1:
        connect_stages(ranks, groups, device)
    step = custom_train_step(job) if job.runtime.train_step is not None else family_of(job).train_step(job)
    control = Control(groups.control, len(step.parts) + len(metrics_of(step)), len(auxiliary_losses(job)))
    return Processes(device, ranks, groups, control), step


def _take_run(
    run: RunDir, job: JobSpec, processes: Processes, launch_id: str, clock: StartClock, closing: ExitStack
) -> Launch:
    """Take the lease and begin what is written into the run directory and listened to there."""
    ranks = processes.ranks
    lease = take_lease(run, ranks, processes.control, launch_id)
    closing.callback(lease.release)
    records = Records(run, lease)
    closing.callback(records.close)
    if ranks.is_first:
        record_environment(run, lease)
    stop = StopRequest(run, watches_file=ranks.is_first)
    stop.catch_signals()
    watchdog = _start_watchdog(run, job, ranks, lease, stop, launch_id)
    closing.callback(watchdog.stop)
    return Launch(launch_id, run, lease, records, stop, watchdog, clock)


def _build_network(
    job: JobSpec,
    launch: Launch,
    processes: Processes,
    step: TrainStep,
    words: Vocabulary,
    from_scratch: bool,
    closing: ExitStack,
) -> tuple[Network, float]:
    """Choose layers, attention and graphs with the other ranks, and build this rank's part of the network. Also
    returns the seconds in which the slowest host starts a kernel, 0 where that was not measured.
    """
    device, ranks, control = processes.device, processes.ranks, processes.control
    host, before = 0.0, LastStart()
    if device.is_cuda and depends_on_host(job):
        host = slowest_start(device, control)
        goes_on = ranks.is_first and not from_scratch
        before = control.from_first(LastStart.of(launch.run, layout(job)) if goes_on else LastStart())
    layers = choose_layers(job, device, words.padded_size, ranks, control, host, before.layers)
    flash_attention = choose_attention(job, device, ranks, control)
    computed = with_attention(job, "flash") if flash_attention else job
    graphs = choose_graphs(computed, device, words.padded_size, layers, ranks, control, host, before.cuda_graphs)
    seed_everything(job.runtime.seed, ranks, for_graphs=device.is_cuda and graphs is not None)
    launch.clock.ends("process_groups")
    require_products(job.precision, layers)
    multiply_in_one_kernel(job, layers)
    config = transformer_config(job, device, layers)
    config.flash_attention = flash_attention
    begin_overlap(job, config, layers, device, ranks, control, closing)
    modules = build_chunks(job, config, device, layers, words, ranks)
    chunks = wrap_data_parallel(job, config, modules, graphs)
    optimizer = build_optimizer(job, chunks)
    connect(chunks, parts_of(optimizer), device)
    config.grad_scale_func = loss_scaling(config, chunks, optimizer)
    captured = None if graphs is None else CapturedPasses(step, chunks[0], graphs)
    launch.clock.ends("network")
    auxiliary = AuxiliaryLosses(job, modules, ranks)
    return Network(layers, modules, chunks, step, auxiliary, optimizer, captured), host


def take_lease(run: RunDir, ranks: Ranks, control: Control, launch_id: str) -> Lease:
    """Rank 0 becomes the holder and tells the others its token. What hinders it is raised on all of them."""
    outcome: Lease | UserError | OSError | None = None
    if ranks.is_first:
        try:
            outcome = Lease.acquire(run, launch_id=launch_id)
        except (UserError, OSError) as hindrance:
            outcome = hindrance
    said: int | UserError | OSError = control.from_first(outcome.token if isinstance(outcome, Lease) else outcome)
    if not isinstance(said, int):
        raise said
    if isinstance(outcome, Lease):
        outcome.start_heartbeat()
        return outcome
    return Lease.attach(run, said)


def _start_watchdog(
    run: RunDir, job: JobSpec, ranks: Ranks, lease: Lease, stop: StopRequest, launch_id: str
) -> Watchdog:
    def on_hang(iteration: int | None, seconds: float) -> None:
        limit = job.runtime.hang_timeout
        message = (
            f"no progress for {seconds:.0f} s after iteration {iteration} (runtime.hang_timeout is {limit} s); "
            f"the stacks are in {run.stacks}"
        )
        write_exit_record(run, launch_id, ranks.rank, Outcome("hang", message), iteration)
        if ranks.is_first:
            lease.check()
            run.append(Hang(iteration=iteration, seconds=round(seconds, 1)))
            lease.release()

    def on_orphan() -> None:
        stop.by = stop.by or "the launcher is gone"

    watchdog = Watchdog(run, ranks.rank, job.runtime.hang_timeout, on_hang, on_orphan, HANG_EXIT_CODE)
    watchdog.start()
    return watchdog


def open_data_at(
    job: JobSpec,
    run: RunDir,
    words: Vocabulary,
    state: TrainState,
    before: DataPosition | None,
    group: torch.distributed.ProcessGroup | None = None,
) -> tuple[BatchSchedule, Datasets]:
    """The schedule and the data sets of a training that stands at `state`, in its data at `before`; on every rank."""
    schedule = BatchSchedule.of(job, state.progress)
    position = position_of(job, before, state.consumed_samples, schedule.drawn_samples)
    datasets = open_data(job, run, words, schedule, group, position)
    state.data = datasets.position
    return schedule, datasets


def open_data(
    job: JobSpec,
    run: RunDir,
    words: Vocabulary,
    schedule: BatchSchedule,
    group: torch.distributed.ProcessGroup | None = None,
    position: DataPosition | None = None,
) -> Datasets:
    """The data sets of a job, on every rank; of a run that goes on, those from its `position` in the data on."""
    needed = samples_needed(job, schedule)
    if job.data.random_tokens:
        random = RandomTokens(words.size, job.model.sample_length, job.data.seed, needed.train)
        held_out = RandomTokens(words.size, job.model.sample_length, job.data.seed + 1, max(needed.validation, 1))
        return Datasets(train=random, validation={"validation": held_out} if needed.validation else {}, test=None)
    tokenizer = load_tokenizer(job.data.tokenizer)
    if job.has_task:
        found = open_task(
            job.labelled_task, tokenizer, job.model.seq_length, job.data.seed, evaluates=needed.validation > 0
        )
        if torch.distributed.get_rank() == 0:
            print(examples_line(job.labelled_task, found, needed.train), flush=True)
        return found
    datasets = build_datasets(
        job.data,
        model=job.model,
        tokenizer=tokenizer,
        train_samples=needed.train,
        validation_samples=needed.validation,
        test_samples=needed.test,
        cache_dir=sample_index_dir(job.data, run.path.parent.parent),
        group=group,
        position=position,
    )
    if datasets.index is not None:
        print(datasets.index, flush=True)
    return datasets


def _basis_of_mfu(session: Session) -> dict[str, Any]:
    """What the reported TFLOP/s and MFU are made of, kept with them so that they can be checked."""
    job = session.job
    return {
        "formula": formula(job),
        "flops_per_token": model_flops(job, 1, session.data.vocabulary.padded_size),
        "peak_flops": peak_flops(session.processes.device.name, job.precision.dtype),
        "dtype": job.precision.dtype,
        # The peak stays that of bf16, so that a figure above another means more tokens per second.
        "products": job.precision.products,
        "expert_products": expert_products(job, session.network.modules[0].config, session.network.layers),
    }


def _tell_of_the_start(session: Session, restored: Restored, host: float) -> None:
    """Events and lines of a start. `host`: seconds in which the slowest starts a kernel, where that was measured."""
    state, commit, pretrained, fresh = session.state, restored.commit, restored.pretrained, restored.fresh
    started = Started(
        launch_id=session.launch.id,
        token=session.launch.lease.token,
        pid=os.getpid(),
        world_size=session.processes.ranks.world_size,
        nodes=session.job.launch.nodes if session.job.launch.min_nodes is not None else None,
        topology=layout(session.job),
        iteration=state.iteration,
        samples=state.consumed_samples,
        tokens=state.consumed_tokens,
        blend_since=None if state.data is None else state.data.since,
        device=session.processes.device.name,
        layers=session.network.layers,
        attention_backend="flash" if session.network.modules[0].config.flash_attention else "fused",
        tp_comm_overlap=session.network.modules[0].config.tp_comm_overlap,
        cuda_graphs=session.network.captured is not None,
        host_start_seconds=host or None,
        parameters=parameter_count(session.network.modules),
        total_parameters=parameters(session.job, session.data.vocabulary.padded_size).total,
        mfu=_basis_of_mfu(session),
        torch=torch.__version__,
        megatron_core=megatron.core.__version__,
    )
    session.event(started)
    if pretrained is not None:
        session.event(pretrained.event(fresh))
        if session.processes.ranks.is_first:
            also = f"; fresh: {', '.join(fresh)}" if fresh else ""
            print(f"weights of {pretrained.commit.path}{also}", flush=True)
    if commit is not None:
        session.event(Resumed(iteration=state.iteration, checkpoint=commit.path.name))
