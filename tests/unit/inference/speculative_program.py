"""One rank: how a network goes on from a few token lists, with drafts and without.

`speculative_program.py RUN_DIR JOB OUT DRAFTS…`: writes what each number of drafts gives to OUT/rank-N.json.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from orchestrator.inference.loading import open_network
from orchestrator.inference.model import Model
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.loading import load_resolved

LISTS = [[7], [150, 151], [1, 2, 3, 4, 5], [3, 1, 4, 1, 5, 9, 2, 6, 53]]
TOKENS = 24
GREEDY: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": 0, "log_probabilities": True}
DRAWN: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": 0.9, "top_k": 50, "top_p": 0.95}
PENALISED: dict[str, Any] = {**GREEDY, "repetition_penalty": 1.5, "min_new_tokens": 12}
OFTEN: dict[str, Any] = {"temperature": 1.5, "top_k": 3, "max_new_tokens": 3}
SEEDS, LENGTH = 1500, 3
EACH = [{**GREEDY, "max_new_tokens": 9}, {**DRAWN, "seed": 3}, PENALISED, {**DRAWN, "max_new_tokens": 18}]


def main() -> int:
    run_dir, job, out = map(Path, sys.argv[1:4])
    weights = Weights(run_dir, load_resolved(job), RunDir(run_dir))
    found = {}
    for drafts in map(int, sys.argv[4:]):
        model = Model(*open_network(weights, num_speculative_tokens=drafts))
        if drafts:
            assert model.job.model.mtp_num_layers == drafts
        found[drafts] = written(model)
        if model.network.ranks.world_size == 1:
            found[drafts] |= apart(model)
            if drafts:
                found[drafts] |= {"often": often(model)}
        model.close()
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    return 0


def often(model: Model) -> dict[str, Any]:
    """How often each of the texts of LENGTH tokens is drawn, and its probability."""
    options = [{**OFTEN, "seed": seed} for seed in range(SEEDS)]
    drawn = model.generate([LISTS[1]] * SEEDS, options, ends=[], batch_size=SEEDS)
    counts = Counter(tuple(each.tokens) for each in drawn)
    likely: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        logits = model.logits([[*LISTS[1], *text] for text in likely])[:, -1] / OFTEN["temperature"]
        best = logits.topk(OFTEN["top_k"])
        following = zip(likely.items(), best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True)
        likely = {
            (*text, token): before * own
            for (text, before), tokens, each in following
            for token, own in zip(tokens, each, strict=True)
        }
    assert counts.keys() <= likely.keys()
    return {
        "counts": [counts[text] for text in likely],
        "expected": [SEEDS * each for each in likely.values()],
        "accepted": [sum(getattr(each, name) for each in drawn) for name in ("accepted_tokens", "draft_tokens")],
    }


def written(model: Model) -> dict[str, Any]:
    """Tokens, log-probabilities and drafts."""
    greedy = model.generate(LISTS, GREEDY, ends=[])
    end = greedy[3].tokens[11]

    def tokens(options: Any, ends: list[int]) -> list[list[int]]:
        return [each.tokens for each in model.generate(LISTS, options, ends=ends)]

    return {
        "greedy": [each.tokens for each in greedy],
        "~log probabilities": [each.log_probabilities for each in greedy],
        "drafts": [(each.draft_tokens, each.accepted_tokens) for each in greedy],
        "ended": tokens(GREEDY, [end]),
        "penalised": tokens(PENALISED, [end]),
        "beams": tokens({"max_new_tokens": 7, "num_beams": 3}, []),
        "one token": tokens({**GREEDY, "max_new_tokens": 1}, []),
        "drawn": tokens(DRAWN, []),
        "of each its own": tokens(EACH, [end]),
    }


def apart(model: Model) -> dict[str, Any]:
    """Drawn tokens of lists that are not all in one batch."""
    end = model.generate(LISTS, GREEDY, ends=[])[3].tokens[11]
    twos = model.generate(LISTS, DRAWN, ends=[], batch_size=2)
    return {
        "drawn in twos": [each.tokens for each in twos],
        "each alone": [model.generate([row], own, ends=[end])[0].tokens for row, own in zip(LISTS, EACH, strict=True)],
    }


if __name__ == "__main__":
    sys.exit(main())
