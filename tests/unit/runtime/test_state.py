"""What survives a restart."""

from __future__ import annotations

import pytest

from orchestrator.runtime.state import TrainState


def test_round_trip() -> None:
    state = TrainState(iteration=5, consumed_samples=40, skipped_steps=2, consecutive_bad_steps=1)
    restored = TrainState()
    restored.load_state_dict(state.state_dict())
    assert restored == TrainState(iteration=5, consumed_samples=40, skipped_steps=2), "bad steps count anew"


def test_a_state_that_lacks_something_is_refused() -> None:
    with pytest.raises(KeyError):
        TrainState().load_state_dict({"iteration": 1})
