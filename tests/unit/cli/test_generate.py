"""What the command passes on of what its ranks say."""

from __future__ import annotations

from collections import deque

import pytest

from orchestrator.cli.models.generate import failure, pass_on

LINES = [
    "warning: skipped a checkpoint\n",
    "W1122 11:00:00.000000 7 torch/distributed/run.py:766] Setting OMP_NUM_THREADS\n",
    "ERROR:    Exception in ASGI application\n",
    "error: the port is taken\n",
    "E1122 11:00:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 2)\n",
    "Traceback of torchrun\n",
]


@pytest.mark.parametrize(("shows_all", "shown"), [(False, [0]), (True, [0, 2])])
def test_lines_are_passed_on_and_kept(shows_all: bool, shown: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    kept: deque[str] = deque(maxlen=5)
    pass_on(LINES, kept, shows_all)
    assert capsys.readouterr().err == "".join(LINES[number] for number in shown)
    assert list(kept) == LINES[1:]


def test_a_process_that_the_system_ended_is_said_to_be_so() -> None:
    """And no warning that it left is blamed."""
    killed = str(failure("UserWarning: something\n", "generation", -9))
    assert killed.startswith(
        "generation failed: its process was ended by SIGKILL; if no person did that, the system did"
    )
    assert str(failure("", "evaluation", -11)) == "evaluation failed: its process was ended by SIGSEGV"
