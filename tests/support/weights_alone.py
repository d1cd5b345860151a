"""For `inject`: a training of whose checkpoint nothing but the weights is looked at ends without the optimizer's state
in it: three of four tensors, which take as long as its steps.
"""

from __future__ import annotations

from orchestrator.runtime.callbacks.saving import CheckpointSaving
from orchestrator.runtime.session import Session

save_all = CheckpointSaving.on_end


def save_weights(saving: CheckpointSaving, session: Session) -> None:
    session.network.optimizer.sharded_state_dict = lambda *weights, **options: {}
    save_all(saving, session)


CheckpointSaving.on_end = save_weights
