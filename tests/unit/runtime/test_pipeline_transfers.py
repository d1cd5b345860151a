"""What an interleaved pipeline sends from stage to stage arrives, though its memory is given up at once."""

from __future__ import annotations

from typing import Any


def test_what_is_freed_behind_its_send_arrives_whole(run_ranks: Any) -> None:
    assert run_ranks("sent-and-freed", 4) == [[], [1.0], [2.0], [3.0]]
