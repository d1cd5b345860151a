"""Loss and perplexity on the validation sets."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import Dataset

from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import EvaluationSkipped, Started
from orchestrator.runtime.batch_sampler import MicroBatchSampler
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.callbacks.logging import loss_metrics
from orchestrator.runtime.forward_backward import run_micro_batches
from orchestrator.runtime.layers.transformer_engine.quantization import largest_values_kept
from orchestrator.runtime.processes.process_groups import rng_state, set_rng_state
from orchestrator.runtime.processes.rank_agreement import Losses
from orchestrator.runtime.session import Network, Session
from orchestrator.runtime.steps.base import metrics_of
from orchestrator.spec.sections.evaluation import EvaluationSpec
from orchestrator.tracking.measurements.metrics import is_measured

# exp of a larger loss has no finite float.
_LARGEST_EXPONENT = 700.0


class Evaluation(Callback):
    """Every `eval_interval` steps, on the same samples each time, the first `eval_iters` global batches of each set, or
    on those behind the ones of the evaluation before. One that a stop has put off comes before the first step of the
    next start.
    """

    def on_start(self, session: Session) -> None:
        at_start = session.job.evaluation.eval_at_start and session.state.iteration == 0
        if at_start or _is_owed(session):
            evaluate(session)

    def on_step(self, session: Session) -> None:
        if not session.finished and _at_interval(session):
            evaluate(session)


class FinalEvaluation(Callback):
    """The evaluation after the last step. It comes after the last checkpoint, so that it can take its time."""

    def on_end(self, session: Session) -> None:
        evaluation = session.job.evaluation
        if _at_interval(session) or (evaluation.eval_interval is not None and evaluation.eval_at_end):
            evaluate(session)


def _is_owed(session: Session) -> bool:
    """Whether an evaluation of exactly these weights was due and is not recorded. All ranks agree on it."""
    iteration = session.state.iteration
    if iteration == 0 or session.finished or not _at_interval(session):
        return False
    run, owed = session.launch.run, False
    if session.processes.ranks.is_first:
        owed = not is_measured(run, "validation/loss", iteration, _trained_from(run.events(), iteration))
    return session.processes.control.any(owed)


def _trained_from(events: EventLog, iteration: int) -> float:
    """When the start began that trained the step of this number: a course that fell back behind it, and perhaps went on
    with other rates or data, has measured other weights at it before.
    """
    before = [start for start in events.all(Started) if start.iteration is not None and start.iteration < iteration]
    return before[-1].time or 0.0 if before else 0.0


def _at_interval(session: Session) -> bool:
    interval = session.job.evaluation.eval_interval
    return interval is not None and session.state.iteration % interval == 0


def evaluations_before(spec: EvaluationSpec, iteration: int) -> int:
    """How many evaluations' samples come before those of the one after a step: as Megatron-LM counts them, which
    evaluates at intervals and behind the last step. One before the first step reads what the first one after it does.
    """
    if spec.same_samples or spec.eval_interval is None:
        return 0
    return max(math.ceil(iteration / spec.eval_interval) - 1, 0)


def evaluate(session: Session) -> None:
    """Measure and record the loss on every validation set. A requested stop ends it early, an event says so, and the
    next start does it.
    """
    session.wait_for_all_reduce()
    values: dict[str, float] = {}
    with evaluating(session.network):
        for number, (name, dataset) in enumerate(session.data.validation.items()):
            losses = mean_losses(session, dataset)
            if losses is None:
                session.event(EvaluationSkipped(iteration=session.state.iteration))
                return
            # The first set is everything together; what follows are its sources one by one.
            prefix = f"validation/{name}" if number else "validation"
            values |= loss_metrics(prefix, losses)
            if not session.job.has_task:
                # The first part is the language modelling, whose perplexity is known by that name.
                first = losses.parts[session.network.step.parts[0]]
                values[f"{prefix}/perplexity"] = math.exp(min(first, _LARGEST_EXPONENT))
    if session.processes.ranks.is_first and values:
        state = session.state
        session.launch.records.metrics(
            state.iteration,
            state.consumed_samples,
            state.consumed_tokens,
            values,
            time.time(),
        )
        text = "  ".join(f"{key} {value:.4f}" for key, value in values.items())
        print(f"iteration {state.iteration}  {text}", flush=True)


@contextlib.contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """No dropout, no gradients, parameters gathered once instead of before each layer. Scales of FP8 and what dropout
    draws from stay as they were: Transformer Engine's attention draws where it drops nothing, too.
    """
    drawing_from = rng_state()
    overlapping = [chunk for chunk in network.chunks if chunk.ddp_config.overlap_param_gather]
    for chunk in overlapping:
        chunk.disable_forward_pre_hook(param_sync=True)
    for chunk in network.chunks:
        chunk.eval()
    beside = contextlib.nullcontext() if network.captured is None else network.captured.left_alone()
    try:
        with torch.no_grad(), largest_values_kept(network.modules), beside:
            yield
    finally:
        for chunk in network.chunks:
            chunk.train()
        for chunk in overlapping:
            chunk.enable_forward_pre_hook()
        set_rng_state(drawing_from)


def mean_losses(session: Session, dataset: Dataset[Any]) -> Losses | None:
    """Mean losses over `eval_iters` global batches, or fewer where these hold all that there is; None when a stop was
    requested meanwhile. Which batches depends on the step alone.

    After the last step there is no later evaluation that would make up for this one, so it is not stopped.
    """
    job, schedule = session.job, session.data.schedule
    held_out = len(cast(Sized, dataset))  # torch's class has no length, and all of ours have one
    batches = min(job.evaluation.eval_iters, math.ceil(held_out / job.global_batch_size))
    samples = batches * job.global_batch_size
    first = evaluations_before(job.evaluation, session.state.iteration) * samples
    full = schedule.at_full_size()
    iterators = session.stream(
        dataset, MicroBatchSampler(full, first, first + samples, session.processes.ranks.dp)
    ).iterators()
    metrics = metrics_of(session.network.step)
    sums = [(0.0, 0.0)] * (len(session.network.step.parts) + len(metrics))
    for _ in range(batches):
        session.progress()
        loss = run_micro_batches(
            session.network.step,
            session.network.chunks,
            iterators,
            num_micro_batches=full.num_micro_batches(0),
            micro_batch_size=job.micro_batch_sequences,
            seq_length=job.model.sample_length,
            forward_only=True,
        )
        agreed = session.processes.control.exchange(
            session.state.iteration,
            stop=session.launch.stop.is_set(),
            loss=loss if session.processes.ranks.reports_loss else None,
        )
        if agreed.stop and not session.finished:
            session.agreed.stopping = True
            return None
        sums = [(total + a, count + b) for (total, count), (a, b) in zip(sums, agreed.sums, strict=True)]
    return Losses.of(session.network.step.parts, tuple(sums), metrics=metrics)
