"""torchrun itself, in a process that was forked, with ranks that are forked instead of started: to import torch three
times takes ten seconds of the processor. The store, the agent, its signals and what it says of a rank are its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler


def fork_ranks(fork: Callable[[Sequence[str], Mapping[str, str]], Any]) -> None:
    """Have torchrun fork its ranks. `fork`: of a module with its arguments, and variables; what it gives stands for a
    `Popen`.
    """

    def begin(handler: SubprocessHandler, command: Sequence[str], env: Mapping[str, str]) -> Any:
        rank = fork(command[command.index("-m") + 1 :], env)
        os.setpgid(rank.pid, rank.pid)  # torchrun ends the group
        return rank

    # torch has no other place to say how a rank is started; one that has moved fails here.
    assert hasattr(SubprocessHandler, "_popen"), "this torch starts ranks in another way"
    SubprocessHandler._popen = begin  # type: ignore[method-assign]
