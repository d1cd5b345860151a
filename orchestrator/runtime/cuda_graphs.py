"""The passes over a micro-batch as one CUDA graph: the host starts it whole, where it starts a thousand kernels from
modules and an autograd that are Python.

In it is no communication: replicas reduce their gradients behind the last micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

from orchestrator.errors import UserError
from orchestrator.kernel_selection.cuda_graphs import AgainstGraphs, against_graphs_of_run
from orchestrator.runtime.forward_backward import run_micro_batches
from orchestrator.runtime.layers.rank_machine import machine_and_estimates
from orchestrator.runtime.layers.transformer_engine.quantization import QuantizedWeights
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks, rng_generators
from orchestrator.runtime.processes.rank_agreement import Control, of_any
from orchestrator.runtime.steps.base import Batch, TrainStep, metrics_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.kernels.cuda_graphs import GRAPHS
from orchestrator.spec.sections.runtime import Layers

_WARM_UP = 3
"""Micro-batches of one shape that are computed as they come: what compiles, and what is looked up once, does so."""
_CUDA: Any = torch.cuda  # much of it has no types

_Shape = tuple[tuple[str, torch.Size, torch.dtype], ...]
"""Of a micro-batch: its fields."""


class Graphs(Protocol):
    """What captures."""

    def apart(self) -> AbstractContextManager[None]:
        """Inside, work goes where it is captured, also what is not."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does on the GPU what `work` starts there, and has not done it yet."""
        ...


class CUDAGraphs:
    """Captures on a stream of its own: autograd adds a gradient up on the stream on which it was first told of the
    parameter, so that data parallelism is set up `apart` too.
    """

    def __init__(self) -> None:
        self._stream = _CUDA.Stream()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """That stream waits for the current one, and the current one for it."""
        current = _CUDA.current_stream()
        self._stream.wait_stream(current)
        with _CUDA.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What it allocates stays the graph's. Raises UserError for work that cannot be captured."""
        graph = _CUDA.CUDAGraph()
        for generator in rng_generators():
            graph.register_generator_state(generator)
        # Other threads ask after their copies and their communication meanwhile.
        try:
            with _CUDA.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(
                f"the passes cannot be a CUDA graph here: {said}; train with --set {GRAPHS}=false",
                code="failing_cuda_graphs",
            ) from error
        replay: Callable[[], None] = graph.replay
        return replay


def choose_graphs(
    job: JobSpec,
    device: Device,
    padded_vocab: int,
    layers: Layers,
    ranks: Ranks,
    control: Control,
    start_seconds: float,
    before: bool | None,
) -> Graphs | None:
    """What captures the passes of this job, on all ranks or on none; None where they are not captured. Where a job
    leaves it open the slowest host, which starts a kernel in `start_seconds`, decides too; several replicas go on as
    they did `before`, since they add gradients up in another order. Rank 0 says what the plan does not. Raises
    UserError where they are to be, and this is no GPU.
    """
    asked = job.runtime.cuda_graphs
    if asked is None:
        own = _against(job, device, padded_vocab, layers, start_seconds, before)
        # Replicas of which some reduce gradients as they come and others behind them all would wait for ever.
        why = of_any(control, own.why)
        asked = why is None
        if control.any(own.is_news(asked)) and ranks.is_first:
            not_ = "" if asked else "not "
            print(f"the passes are {not_}CUDA graphs: {why or own.cause}", flush=True)
    elif asked and not device.is_cuda:
        raise UserError(
            f"{GRAPHS} is true, but this process computes on the CPU; leave it out", code="cuda_graphs_without_gpu"
        )
    return CUDAGraphs() if asked else None


def _against(
    job: JobSpec, device: Device, padded_vocab: int, layers: Layers, start_seconds: float, before: bool | None
) -> AgainstGraphs:
    if not device.is_cuda:
        why = "graphs need a GPU, and this is the CPU"
        return AgainstGraphs(why, why)
    try:
        machine, estimates = machine_and_estimates(device, padded_vocab)
    except UserError as error:
        return AgainstGraphs(str(error).splitlines()[0], None)
    return against_graphs_of_run(job, layers, machine, estimates, start_seconds, before)


class CapturedPasses:
    """The forward and backward passes of a replica that is one model chunk on one GPU.

    The first micro-batches, and those of another shape than was captured, are computed as they come.
    """

    def __init__(self, step: TrainStep, chunk: Any, graphs: Graphs) -> None:
        """`chunk`: wrapped in data parallelism. Takes the place of what scales its loss and reduces its gradients."""
        config, device = chunk.config, next(chunk.parameters()).device
        self._step, self._chunk, self._graphs = step, chunk, graphs
        self._replay: Callable[[], None] | None = None
        self._shape: _Shape | None = None
        self._inputs: Batch = {}
        self._seen: dict[_Shape, int] = {}
        self._per_token = bool(config.calculate_per_token_loss)
        # A graph reads and writes where it did as it was captured.
        self._one, self._factor = torch.ones((), device=device), torch.ones((), device=device)
        self._scale_loss = config.grad_scale_func
        self._sums = torch.zeros(len(step.parts) + len(metrics_of(step)), 2, dtype=torch.float64, device=device)
        self._tokens = torch.zeros((), dtype=torch.int, device=device)
        self._reduce, self._options = config.finalize_model_grads_func, dict[str, Any]()
        self._weights = None if config.fp8 is None else QuantizedWeights(chunk)
        config.finalize_model_grads_func = self._reduce_later
        config.grad_scale_func = self._scale

    def run(self, batches: Iterator[Batch], num_micro_batches: int) -> torch.Tensor:
        """Forward and backward over the micro-batches of a global batch, and the reduction of gradients.

        Returns what `run_micro_batches` does, [parts, 2]: a tensor that the next call overwrites.
        """
        # megatron-core divides by the micro-batches that it knows of, which is one at a time.
        scale = self._scale_loss(self._one).view(())
        torch.div(scale, 1 if self._per_token else num_micro_batches, out=self._factor)
        self._sums.zero_()
        self._tokens.zero_()
        for index in range(num_micro_batches):
            with nullcontext() if self._weights is None else self._weights.micro_batch(is_first=index == 0):
                self._micro_batch(next(batches))
        self._reduce([self._chunk], self._tokens if self._per_token else None, **self._options)
        return self._sums

    def left_alone(self) -> AbstractContextManager[None]:
        """Inside, the chunk computes beside its graph: an evaluation."""
        return nullcontext() if self._weights is None else self._weights.set_aside()

    def _micro_batch(self, batch: Batch) -> None:
        shape = tuple((name, values.shape, values.dtype) for name, values in batch.items())
        if self._replay is None:
            seen = self._seen[shape] = self._seen.get(shape, 0) + 1
            if seen > _WARM_UP:
                self._shape = shape
                self._inputs = {name: torch.empty_like(values) for name, values in batch.items()}
                self._replay = self._graphs.capture(lambda: self._passes(self._inputs))
        if self._replay is None or shape != self._shape:
            with self._graphs.apart():
                self._passes(batch)
            return
        for name, values in batch.items():
            self._inputs[name].copy_(values)
        self._replay()

    def _passes(self, batch: Batch) -> None:
        """Over one micro-batch, adding to the gradients, the sums and the tokens."""
        found = run_micro_batches(
            self._step,
            [self._chunk],
            [iter([batch])],
            num_micro_batches=1,
            micro_batch_size=0,  # these two are for what stages send each other
            seq_length=0,
            forward_only=False,
        )
        assert found is not None, "the one chunk has the loss"
        self._sums += found

    def _scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self._factor

    def _reduce_later(self, chunks: list[Any], tokens: torch.Tensor | None = None, **options: Any) -> None:
        """What megatron-core's schedule calls behind every micro-batch."""
        self._options = options
        if tokens is not None:
            self._tokens += tokens
