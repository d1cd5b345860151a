"""Megatron-LM's flags of FP8 and FP4, read into a job. (The way back is in test_round_trip.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Flags = Callable[..., Any]
ITS_OWN = {"amax_history_len": 1, "amax_compute_algo": "most_recent"}
"""What Megatron-LM's delayed scaling remembers by itself."""


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("", None),
        ("--fp8-recipe delayed --fp8-margin 2", None),
        ("--fp8-format hybrid", {"recipe": "delayed", **ITS_OWN}),
        ("--fp8-hybrid", {"recipe": "delayed", **ITS_OWN}),
        ("--fp8-format e4m3", {"recipe": "delayed", "format": "e4m3", **ITS_OWN}),
        ("--fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max", {"recipe": "delayed"}),
        ("--fp8-format hybrid --fp8-margin 2", {"recipe": "delayed", "margin": 2, **ITS_OWN}),
        ("--fp8-format hybrid --fp8-recipe tensorwise --fp8-margin 2", {"recipe": "tensorwise"}),
        ("--fp8-format e4m3 --fp8-recipe blockwise", {"recipe": "blockwise"}),
        ("--fp8-format hybrid --fp8-recipe blockwise", {"recipe": "blockwise", "format": "hybrid"}),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", {"recipe": "mxfp8"}),
        ("--fp8-format hybrid --fp8-recipe mxfp8 --fp8-margin 2", {"recipe": "mxfp8", "format": "hybrid"}),
        (
            "--fp8-format e4m3 --fp8-recipe blockwise --first-last-layers-bf16 --num-layers-at-end-in-bf16 0",
            {"recipe": "blockwise", "num_layers_at_start_in_bf16": 1},
        ),
        ("--fp8-format e4m3 --fp8-recipe blockwise --num-layers-at-end-in-bf16 1", {"recipe": "blockwise"}),
    ],
)
def test_what_they_say(flags: Flags, words: str, fields: dict[str, Any] | None) -> None:
    fp8 = flags("--bf16", *words.split()).job.precision.fp8
    assert (None if fp8 is None else fp8.model_dump(exclude_defaults=True)) == (
        None if fields is None else {name: value for name, value in fields.items() if (name, value) != SAID_BY_ITSELF}
    )


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ("--fp4-format e2m1", (0, 0)),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", (0, 0)),
        ("--fp4-format e2m1 --num-layers-at-end-in-bf16 2", (0, 0)),
        ("--fp4-format e2m1 --first-last-layers-bf16", (1, 1)),
        ("--fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-end-in-bf16 2", (1, 2)),
        ("--fp4-recipe nvfp4", None),
    ],
)
def test_what_those_of_fp4_say(flags: Flags, words: str, ends: tuple[int, int] | None) -> None:
    precision = flags("--bf16", *words.split()).job.precision
    assert precision.fp8 is None
    assert (precision.fp4 and precision.fp4.ends_in_bf16) == ends


SAID_BY_ITSELF = ("recipe", "delayed")


@pytest.mark.parametrize(
    ("words", "flag", "outcome"),
    [
        ("--fp8-margin 2", "--fp8-margin", "no_effect"),
        ("--fp8-format hybrid --fp8-recipe tensorwise --fp8-margin 2", "--fp8-margin", "no_effect"),
        ("--fp8-format hybrid --fp8-amax-history-len 0", "--fp8-amax-history-len", "not_known"),
        ("--fp8-format e5m2", "--fp8-format", "not_known"),
        ("--fp8-format hybrid --fp8-interval 2", "--fp8-interval", "no_effect"),
        ("--fp8-format hybrid --num-layers-at-end-in-bf16 1", "--num-layers-at-end-in-bf16", "no_effect"),
        ("--fp8-format hybrid --fp8-recipe mxfp8 --fp8-margin 2", "--fp8-margin", "no_effect"),
        ("--fp4-format e2m1 --fp8-margin 2", "--fp8-margin", "no_effect"),
        ("--fp4-recipe nvfp4", "--fp4-recipe", "no_effect"),
        ("--fp4-format e2m1 --fp4-recipe custom --first-last-layers-bf16", "--first-last-layers-bf16", "no_effect"),
    ],
)
def test_what_else_is_said_of_them(flags: Flags, words: str, flag: str, outcome: str) -> None:
    assert flags("--bf16", *words.split()).outcome(flag) == outcome
