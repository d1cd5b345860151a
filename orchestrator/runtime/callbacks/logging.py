"""Metrics of the steps into the run directory, and one plain line of them into the rank's log."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from orchestrator.planning.flops import full_flops, model_flops, peak_flops
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.processes.rank_agreement import Losses
from orchestrator.runtime.records.interval import Interval
from orchestrator.runtime.session import Session
from orchestrator.runtime.state import StepRecord

TFLOPS, FULL_TFLOPS = "throughput/tflops_per_gpu", "throughput/tflops_per_gpu_full"
"""By the count that the job asks for; beside that of Megatron-LM with all of attention's scores."""


class MetricLogging(Callback):
    """Loss, learning rate, gradient norm and throughput, every `tracking.log_interval` steps, written by rank 0: means
    over the steps since the line before. What is left at the end, or at a stop, makes a line of its own.
    """

    def __init__(self) -> None:
        self._interval = Interval()
        self._last: StepRecord | None = None

    def on_loss(self, session: Session, record: StepRecord, losses: Losses) -> None:
        if not session.processes.ranks.is_first:
            return
        measured = {
            **loss_metrics("train", losses),
            **{f"train/{name}": value for name, value in losses.auxiliary.items()},
            "train/grad_norm": record.grad_norm,
        }
        self._interval.add(record.samples, record.seconds, measured)
        self._last = record
        if record.iteration % session.job.tracking.log_interval == 0:
            self._write(session)

    def on_end(self, session: Session) -> None:
        self._write(session)

    def on_stop(self, session: Session) -> None:
        self._write(session)

    def _write(self, session: Session) -> None:
        """A line of the steps since the last one, if there were any."""
        interval, record = self._interval, self._last
        if record is None:
            return
        self._interval, self._last = Interval(), None
        step_seconds = interval.seconds / interval.steps
        values = {
            **interval.means,
            "train/lr": record.learning_rate,
            "train/skipped_steps": record.skipped_steps,
            "throughput/step_seconds": step_seconds,
            **throughput(session, interval.samples, interval.seconds),
        }
        if record.loss_scale is not None:
            values["train/loss_scale"] = record.loss_scale
        if session.processes.device.is_cuda:
            values["memory/peak_bytes"] = torch.cuda.max_memory_allocated()
        session.launch.records.metrics(
            record.iteration, record.consumed_samples, record.consumed_tokens, values, record.ended
        )
        print(
            f"iteration {record.iteration}/{session.data.schedule.train_iters}  loss {values['train/loss']:.6f}  "
            f"lr {record.learning_rate:.3e}  grad norm {values['train/grad_norm']:.3f}  {step_seconds * 1000:.0f} ms  "
            f"{values['throughput/tokens_per_second']:.0f} tokens/s{_both_counts(values)}",
            flush=True,
        )


def _both_counts(values: Mapping[str, float]) -> str:
    """The speed in TFLOP/s, as Megatron-LM's log has it, and ours beside it, of a job that asks for its count."""
    if FULL_TFLOPS not in values:
        return ""
    return f"  {values[TFLOPS]:.3g} TFLOP/s per GPU (attention in full: {values[FULL_TFLOPS]:.3g})"


def loss_metrics(prefix: str, losses: Losses) -> dict[str, float]:
    """`PREFIX/loss`, `PREFIX/loss/PART` for each part where there are several, and `PREFIX/METRIC` for each metric."""
    parts = {f"{prefix}/loss/{name}": value for name, value in losses.parts.items()} if len(losses.parts) > 1 else {}
    metrics = {f"{prefix}/{name}": value for name, value in losses.metrics.items()}
    return {f"{prefix}/loss": losses.total, **parts, **metrics}


def throughput(session: Session, samples: int, seconds: float) -> dict[str, float]:
    """Tokens/s over all ranks; TFLOP/s of one by the model's FLOPs; MFU against the GPU's dense peak where known. The
    last two by both counts where the job asks for Megatron-LM's.
    """
    tokens = samples * session.job.tokens_per_sample
    peak = peak_flops(session.processes.device.name, session.job.precision.dtype)
    values = {"throughput/tokens_per_second": tokens / seconds}
    for of, tflops, mfu in ((model_flops, TFLOPS, "throughput/mfu"), (full_flops, FULL_TFLOPS, "throughput/mfu_full")):
        flops = of(session.job, tokens, session.data.vocabulary.padded_size)
        if flops is None:
            continue
        per_gpu = flops / seconds / session.processes.ranks.world_size
        values[tflops] = per_gpu / 1e12
        if peak is not None:
            values[mfu] = per_gpu / peak
    return values
