"""Seconds that a pass waits for activations on their way to the host's memory, or back, and an update for state."""

from __future__ import annotations

from orchestrator.kernel_selection.cuda_connections import device_connections
from orchestrator.planning.memory import offloaded_bytes
from orchestrator.planning.memory.optimizer_state import optimizer_state
from orchestrator.planning.time.passes import Parts, Pass, add
from orchestrator.planning.time.setting import Setting


def with_offloading(setting: Setting, each: Pass, layers: int) -> Pass:
    """The passes over all `layers` of a rank. Transformer Engine (2.11, `DefaultOffloadSynchronizer`) copies the
    activations of the first of them, from when the second begins until the last one does, and has them back in the same
    way: what the layers between do not cover is waited for. Nothing covers the copies of all layers but one, each of
    which has to be done before the next layer begins. Where the GPU takes all work through one queue, a layer of the
    backward pass can hide only the copy that was asked for just before it, as much of it as takes no longer.
    """
    moved, count = offloaded_bytes(setting.job, setting.kernels.layers), setting.job.runtime.cpu_offloading_num_layers
    if not moved or count is None:
        return each
    copying = moved / _bandwidth(setting)
    between = layers - 2 if count < layers - 1 else 0
    in_order = device_connections(setting.job) == 1

    def waiting(parts: Parts, covering: int) -> Parts:
        return add(parts, {"host_copies": max(copying - sum(parts.values()) * covering / layers, 0.0)})

    return Pass(waiting(each.forward, between), waiting(each.backward, min(count, between) if in_order else between))


def waiting_for_state(setting: Setting, trained: int, experts: int, updating: float) -> float:
    """Seconds that an update, which takes `updating` seconds of kernels, waits for the optimizer's state of so many
    parameters of a rank. Blocks come and go at once, each way over a link of its own; what has come last goes during
    the next forward pass. Counted, not measured.
    """
    return max(optimizer_state(setting.job, trained, experts).on_host / _bandwidth(setting) - updating, 0.0)


def _bandwidth(setting: Setting) -> float:
    """Bytes per second in one direction."""
    return setting.device.host_bandwidth * setting.device.fitted.communication.host_copies
