"""How the global batch grows, and so how steps and samples convert into each other."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from orchestrator.spec.layout.batch import RampupSpec


class BatchStage(NamedTuple):
    """A stretch of steps with one global batch size. The last one is open-ended."""

    global_batch_size: int
    num_micro_batches: int
    first_iteration: int
    """Steps done before this stage."""
    first_sample: int
    """Samples consumed before this stage."""


def batch_sizes(full: int, pass_size: int, rampup: RampupSpec | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(thresholds, sizes): consumed samples from which each global batch size holds. The full batch alone, or the steps
    up to it; each is rounded down to whole passes of `pass_size` samples, to one pass at least.
    """
    if rampup is None or rampup.start_global_batch_size >= full:
        return (0,), (full,)
    increments = -(-(full - rampup.start_global_batch_size) // rampup.increment)
    thresholds, sizes = [0], [_whole_passes(rampup.start_global_batch_size, pass_size)]
    for number in range(1, increments + 1):
        size = _whole_passes(min(rampup.start_global_batch_size + number * rampup.increment, full), pass_size)
        if size > sizes[-1]:
            thresholds.append(_threshold(number, increments, rampup.samples))
            sizes.append(size)
    return tuple(thresholds), tuple(sizes)


def _whole_passes(size: int, pass_size: int) -> int:
    return max(size // pass_size, 1) * pass_size


def _threshold(number: int, increments: int, samples: int) -> int:
    """The first consumed_samples at which `number` increments are in force.

    Megatron divides in floating point, `int(consumed / (samples / increments))`, which can lag the exact quotient by
    one sample; following it, the same step has the same batch here and there.
    """
    consumed = -(-number * samples // increments)
    while consumed <= samples and int(consumed / (samples / increments)) < number:
        consumed += 1
    return consumed


def batch_stages(thresholds: tuple[int, ...], sizes: tuple[int, ...], pass_size: int) -> tuple[BatchStage, ...]:
    """The stretches of steps of these sizes."""
    stages = []
    iteration = sample = 0
    for index, size in enumerate(sizes):
        following = thresholds[index + 1] if index + 1 < len(sizes) else None
        if following is not None and sample >= following:
            continue  # one big step jumped over this size
        stages.append(BatchStage(size, size // pass_size, iteration, sample))
        if following is not None:
            steps = -(-(following - sample) // size)
            iteration += steps
            sample += steps * size
    return tuple(stages)


def iteration_of(stages: tuple[BatchStage, ...], samples: int) -> int:
    """Whole steps done after `samples`."""
    stage = stages[bisect_right(stages, samples, key=lambda stage: stage.first_sample) - 1]
    return stage.first_iteration + (samples - stage.first_sample) // stage.global_batch_size


def samples_at(stages: tuple[BatchStage, ...], iteration: int) -> int:
    """Samples consumed after `iteration` steps."""
    stage = stages[bisect_right(stages, iteration, key=lambda stage: stage.first_iteration) - 1]
    return stage.first_sample + (iteration - stage.first_iteration) * stage.global_batch_size


def whole_steps(stages: tuple[BatchStage, ...], samples: int) -> int:
    """Steps that take `samples` or, where these do not end with a step, a little more."""
    iterations = iteration_of(stages, samples)
    return iterations if samples_at(stages, iterations) >= samples else iterations + 1


def steps_to(thresholds: tuple[int, ...], sizes: tuple[int, ...], start: int, target: int) -> tuple[int, int]:
    """(steps, samples consumed after them) from `start` samples on until at least `target` are consumed; (0, `start`)
    where they are already.
    """
    steps, consumed = 0, start
    for index, size in enumerate(sizes):
        stop = min(target, thresholds[index + 1]) if index + 1 < len(sizes) else target
        more = max(0, -(-(stop - consumed) // size))
        steps += more
        consumed += more * size
    return steps, consumed


def whole_steps_to(
    thresholds: tuple[int, ...], sizes: tuple[int, ...], start: int, target: int, rampup: RampupSpec | None
) -> tuple[int, int]:
    """The same as Megatron-LM counts (`update_train_iters` of core_v0.16.1): at full size a batch that `target` does
    not fill is left out, and during the ramp-up the steps are those until more than `target` are consumed.
    """
    steps, consumed = 0, start
    if rampup is not None:
        steps, consumed = steps_to(thresholds, sizes, start, min(rampup.samples, target) + 1)
    more = max(0, target - consumed) // sizes[-1]
    return steps + more, consumed + more * sizes[-1]


def last_samples(stages: tuple[BatchStage, ...], samples: int, iterations: int) -> int:
    """Samples of the last `iterations` whole steps before `samples`; more than these where there are not so many."""
    last = iteration_of(stages, samples)
    if iterations > last:
        return samples_at(stages, iterations)
    return samples_at(stages, last) - samples_at(stages, last - iterations)
