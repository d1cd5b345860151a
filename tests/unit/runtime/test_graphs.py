"""Whether passes are captured, and the generators that graphs draw from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from megatron.core import tensor_parallel
from support.training import tiny_job

from orchestrator.errors import UserError
from orchestrator.runtime.graphs import choose_graphs
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import rng_generators, rng_state, set_rng_state

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


def test_nothing_is_captured_unasked() -> None:
    assert choose_graphs(tiny_job("plain"), CPU) is None


def test_where_there_is_no_gpu_a_demand_is_refused() -> None:
    with pytest.raises(UserError, match=r"runtime\.cuda_graphs is true, and this process computes on the CPU"):
        choose_graphs(tiny_job("captured", runtime={"cuda_graphs": True}), CPU)


class Tracker:
    """megatron-core's, as far as a state is concerned."""

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    def get_states(self) -> dict[str, Any]:
        return dict(self.states)

    def set_states(self, states: dict[str, Any]) -> None:
        self.states = states


@pytest.mark.parametrize(("saved_of_graphs", "read_by_graphs"), [(a, b) for a in (True, False) for b in (True, False)])
def test_what_dropout_draws_goes_on_with_graphs_and_without(
    saved_of_graphs: bool, read_by_graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint holds the same of either."""

    def track(seed: int, *, for_graphs: bool) -> Tracker:
        generator = torch.Generator().manual_seed(seed)
        tracker = Tracker({"model-parallel-rng": generator if for_graphs else generator.get_state()})
        monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: tracker)
        return tracker

    track(1, for_graphs=saved_of_graphs)
    saved = rng_state()
    wanted = torch.rand(4, generator=torch.Generator().manual_seed(1))

    tracker = track(2, for_graphs=read_by_graphs)
    generators = rng_generators()
    assert len(generators) == read_by_graphs
    set_rng_state(saved)
    [state] = tracker.states.values()
    if read_by_graphs:
        assert generators == [state], "a graph has captured this very generator"
        assert torch.equal(torch.rand(4, generator=state), wanted)
    else:
        drawn = torch.Generator()
        drawn.set_state(state)
        assert torch.equal(torch.rand(4, generator=drawn), wanted)
