"""The training loop."""

from __future__ import annotations

import time

import torch

from orchestrator.run_directory.events.types import Finished, StepSkipped, StopRequested
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.forward_backward import run_micro_batches
from orchestrator.runtime.optimizer_step import loss_scale, update
from orchestrator.runtime.processes.exits import DivergenceError, Outcome
from orchestrator.runtime.processes.garbage import collect, collected_by_hand
from orchestrator.runtime.session import Session
from orchestrator.runtime.state import StepRecord


def train(session: Session, callbacks: list[Callback]) -> Outcome:
    """Train from where the session's state is to the end of the schedule, or to a requested stop.

    Raises DivergenceError after `runtime.max_bad_steps` steps in a row that were not finite.
    """
    try:
        return _train(session, callbacks)
    except Exception:
        for callback in callbacks:
            callback.on_error(session)
        raise


def _train(session: Session, callbacks: list[Callback]) -> Outcome:
    session.loss_listeners = [callback.on_loss for callback in callbacks]
    for callback in callbacks:
        callback.on_start(session)
    session.begin_batches()
    stop = session.launch.stop
    while not (session.finished or session.agreed.stopping or stop.is_due(session.state.iteration)):
        session.progress()
        with collected_by_hand():
            record, loss = train_step(session)
        session.wait_for_all_reduce()
        session.begin_all_reduce(record, loss)
        give_up_when_diverged(session, record)
        for callback in callbacks:
            callback.on_step(session)
        if session.agreed.writing_ended:
            session.agreed.writing_ended = False
            session.checkpointer.finalize()
    session.wait_for_all_reduce()
    if session.finished:
        for callback in callbacks:
            callback.on_end(session)
        # A stop can also arrive while the last evaluation runs: there is nothing left to stop then.
        if session.agreed.postponed:
            return _stopped(session)
        session.event(Finished(iteration=session.state.iteration))
        return Outcome("completed")
    outcome = _stopped(session)
    for callback in callbacks:
        callback.on_stop(session)
    return outcome


def _stopped(session: Session) -> Outcome:
    iteration, stop = session.state.iteration, session.launch.stop
    if not session.finished and stop.is_due(iteration):
        stop.leave_word()
    session.event(StopRequested(by=stop.by or "another rank", iteration=iteration))
    return Outcome("stopped", f"stopped at iteration {iteration} of {session.data.schedule.train_iters}")


def train_step(session: Session) -> tuple[StepRecord, torch.Tensor | None]:
    """One optimizer step on one global batch. Returns its record and, on the host, the loss's [parts, 2].

    Only the last stages have losses; elsewhere that is None.
    """
    started = time.perf_counter()
    job, state, schedule = session.job, session.state, session.data.schedule
    samples = schedule.global_batch_size(state.consumed_samples)
    values = session.data.hyperparameters.at(state.consumed_samples)
    for chunk in session.network.chunks:
        chunk.zero_grad_buffer()
    session.network.optimizer.zero_grad()
    session.mark("passes")
    loss = _passes(session)
    if loss is not None:
        # The copy is done by the time the gradient norm is known, so that nobody waits for it.
        loss = loss.to("cpu", non_blocking=True)
    session.network.auxiliary.collect()
    session.batches.fetch_ahead()
    collect(state.iteration + 1)
    session.mark("update")
    result = update(session.network.optimizer, values, job)
    state.iteration += 1
    state.consumed_samples += samples
    state.consumed_tokens += samples * job.tokens_per_sample
    state.skipped_steps += not result.applied
    state.consecutive_bad_steps = state.consecutive_bad_steps + 1 if result.reason else 0
    record = StepRecord(
        iteration=state.iteration,
        consumed_samples=state.consumed_samples,
        consumed_tokens=state.consumed_tokens,
        samples=samples,
        learning_rate=values.lr,
        grad_norm=result.grad_norm,
        applied=result.applied,
        skipped_steps=state.skipped_steps,
        skip_reason=result.reason,
        seconds=time.perf_counter() - started,
        ended=time.time(),
        loss_scale=loss_scale(session.network.optimizer) if job.precision.dtype == "fp16" else None,
    )
    return record, loss


def _passes(session: Session) -> torch.Tensor | None:
    """Forward and backward over a global batch; the loss's [parts, 2] on the device, on the last stage."""
    num_micro_batches = session.data.schedule.num_micro_batches(session.state.consumed_samples)
    if session.network.captured is not None:
        [batches] = session.batches.iterators()
        return session.network.captured.run(batches, num_micro_batches)
    return run_micro_batches(
        session.network.step,
        session.network.chunks,
        session.batches.iterators(),
        num_micro_batches=num_micro_batches,
        micro_batch_size=session.job.micro_batch_sequences,
        seq_length=session.job.model.sample_length,
        forward_only=False,
    )


def give_up_when_diverged(session: Session, record: StepRecord) -> None:
    """Note a step that was not finite; raise DivergenceError after too many in a row."""
    if record.skip_reason is None:
        return
    session.event(StepSkipped(iteration=record.iteration, reason=record.skip_reason))
    bad = session.state.consecutive_bad_steps
    if bad >= session.job.runtime.max_bad_steps:
        session.wait_for_all_reduce()
        raise DivergenceError(
            f"{bad} consecutive steps had a NaN or infinite loss or gradient (the last one: {record.iteration})"
        )
