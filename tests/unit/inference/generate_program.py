"""One rank: what a network says of a few token lists, and how it goes on from them.

`generate_program.py RUN_DIR JOB OUT [FIELD…]`: writes all or these fields to OUT/rank-N.json. Those whose name begins
with "~" are numbers that rounding may change.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.inference.loading import open_network
from orchestrator.inference.model import Model
from orchestrator.inference.texts import Continuation
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.loading import load_resolved

LISTS = [[7, 8, 9], [1, 2, 3, 4, 5], [249, 240], [3, 1, 4, 1, 5, 9, 2, 6]]
TOKENS = 8
DRAWN = {"max_new_tokens": TOKENS, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.2}
GREEDY = {"max_new_tokens": TOKENS, "temperature": 0}
EVERYTHING: list[dict[str, Any]] = [
    {**GREEDY, "log_probabilities": True},
    {**DRAWN, "seed": 5},
    {"max_new_tokens": 5, "seed": 7, "temperature": 2.0},
    {"max_new_tokens": TOKENS, "num_beams": 3, "length_penalty": 0.5},
]


UNEQUAL = [list(range(5, 33)), [7, 8, 9]]
"""With learned positions there is room for four tokens after the first."""
UNEQUAL_OPTIONS: list[dict[str, Any]] = [{"max_new_tokens": 4}, {"max_new_tokens": 20}]
AT_ONCE: list[dict[str, Any]] = [{"max_new_tokens": 1, "num_beams": 2}, {"max_new_tokens": 5, "num_beams": 2}]


def recomputed(model: Model, tokens: list[int]) -> list[int]:
    """Greedy tokens, each from a forward pass over everything before it, without a cache."""
    row = list(tokens)
    for _ in range(TOKENS):
        row.append(int(model.logits([row])[0, -1].argmax()))
    return row[len(tokens) :]


def tokens_of(model: Model, lists: list[list[int]], options: Any, **more: Any) -> list[list[int]]:
    return [written.tokens for written in model.generate(lists, options, **{"ends": [], **more})]


def main() -> int:
    run_dir, job, out = map(Path, sys.argv[1:4])
    wanted = sys.argv[4:]
    model = Model(*open_network(Weights(run_dir, load_resolved(job), RunDir(run_dir))))
    cached = tokens_of(model, LISTS, GREEDY)

    @cache
    def said() -> tuple[Any, Any]:
        return model.log_probabilities(LISTS)

    @cache
    def measured() -> Continuation:
        [written] = model.generate(LISTS[:1], EVERYTHING[0], ends=[])
        return written

    fields: dict[str, Callable[[], Any]] = {
        "~logits": lambda: [
            row[: len(tokens)].tolist() for row, tokens in zip(model.logits(LISTS), LISTS, strict=True)
        ],
        "~alone": lambda: model.logits(LISTS[:1])[0].tolist(),
        "~log-probabilities": lambda: said()[0].tolist(),
        "likeliest": lambda: said()[1].tolist(),
        "likeliest of the greedy": lambda: [
            model.log_probabilities([[*tokens, *new]])[1][0, len(tokens) - 1 :].tolist()
            for tokens, new in zip(LISTS, cached, strict=True)
        ],
        "~measured": lambda: measured().log_probabilities,
        "~scored": lambda: model.log_probabilities([[*LISTS[0], *measured().tokens]])[0][
            0, len(LISTS[0]) - 1 :
        ].tolist(),
        "cached": lambda: cached,
        "recomputed": lambda: [recomputed(model, tokens) for tokens in LISTS],
        "drawn": lambda: tokens_of(model, LISTS, {**DRAWN, "seed": 5}),
        "drawn in twos": lambda: tokens_of(model, LISTS, {**DRAWN, "seed": 5}, batch_size=2),
        "other seed": lambda: tokens_of(model, LISTS, {**DRAWN, "seed": 6}),
        "drawn, fewer": lambda: tokens_of(model, LISTS, {**DRAWN, "seed": 5, "max_new_tokens": 3}),
        "of each its own": lambda: tokens_of(model, LISTS, EVERYTHING),
        "each alone": lambda: [tokens_of(model, [row], own)[0] for row, own in zip(LISTS, EVERYTHING, strict=True)],
        "unequal": lambda: [
            tokens_of(model, UNEQUAL, [{**own, **how} for own in UNEQUAL_OPTIONS])
            for how in ({"temperature": 0}, {"num_beams": 2})
        ],
        "unequal, alone": lambda: [
            [tokens_of(model, [row], {**own, **how})[0] for row, own in zip(UNEQUAL, UNEQUAL_OPTIONS, strict=True)]
            for how in ({"temperature": 0}, {"num_beams": 2})
        ],
        "at once": lambda: tokens_of(model, LISTS[:2], AT_ONCE),
        "at once, alone": lambda: [tokens_of(model, [row], own)[0] for row, own in zip(LISTS, AT_ONCE, strict=False)],
        "ended": lambda: tokens_of(model, LISTS, GREEDY, ends=[cached[0][4]]),
        "not ended": lambda: tokens_of(model, LISTS, {**GREEDY, "min_new_tokens": TOKENS}, ends=[cached[0][4]]),
        "tokenizer's end": lambda: [written.tokens for written in model.generate(LISTS, GREEDY)],
        "went on": lambda: tokens_of(model, LISTS, {**GREEDY, "ignore_end": True}, ends=[cached[0][4]]),
    }
    found = {name: fields[name]() for name in wanted or fields}
    model.close()
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
