"""One rank: what a network that sees says of token lists with images among them, and how it goes on from them.

`seeing_program.py RUN_DIR JOB OUT`: writes it to OUT/rank-N.json. Fields whose name begins with "~" are numbers that
rounding may change.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.inference import IMAGE
from orchestrator.inference.loading import open_network
from orchestrator.inference.model import Model
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.loading import load_resolved

SIZE, PATCHES, TOKENS = 16, 16, 10
IMAGES = [np.random.default_rng(seed).integers(0, 256, (3, SIZE, SIZE), dtype=np.uint8) for seed in range(7)]
LISTS = [[7, IMAGE, 8, 9], [1, 2, 3, 4, 5], [IMAGE, 5, IMAGE, 6, 4, 3], [IMAGE], [3, IMAGE, IMAGE, IMAGE]]
SEEN = [IMAGES[:1], [], IMAGES[1:3], IMAGES[3:4], IMAGES[4:]]
"""The last has more than a sequence of the training may have."""
GREEDY = {"max_new_tokens": TOKENS, "temperature": 0}
BEAMS = {"max_new_tokens": TOKENS, "num_beams": 3}
DRAWN = {"max_new_tokens": TOKENS, "temperature": 0.9, "top_k": 50, "repetition_penalty": 1.5, "seed": 5}


def recomputed(model: Model, tokens: list[int], images: list[Any]) -> list[int]:
    """Greedy tokens, each from a forward pass over everything before it, without a cache."""
    row = list(tokens)
    for _ in range(TOKENS):
        row.append(int(model.logits([row], images=[images])[0, -1].argmax()))
    return row[len(tokens) :]


def tokens_of(model: Model, options: Any, lists: Any = LISTS, images: Any = SEEN) -> list[list[int]]:
    return [written.tokens for written in model.generate(lists, options, images=images, ends=[])]


def each_alone(model: Model, options: Any) -> list[list[int]]:
    return [tokens_of(model, options, [row], [own])[0] for row, own in zip(LISTS, SEEN, strict=True)]


def length(tokens: list[int]) -> int:
    return len(tokens) + (PATCHES - 1) * tokens.count(IMAGE)


def main() -> int:
    run_dir, job, out = map(Path, sys.argv[1:])
    spec = load_resolved(job)
    model = Model(*open_network(Weights(run_dir, spec, RunDir(run_dir))))
    [first, *_] = model.generate(LISTS, {**GREEDY, "log_probabilities": True}, images=SEEN, ends=[])
    whole = [*LISTS[0], *first.tokens]
    scored, likeliest = model.log_probabilities([whole], images=[SEEN[0]])
    new = slice(length(LISTS[0]) - 1, None)
    logits = model.logits(LISTS, images=SEEN)
    found: dict[str, Any] = {
        "~logits": [row[: length(tokens)].tolist() for row, tokens in zip(logits, LISTS, strict=True)],
        "~alone": model.logits(LISTS[:1], images=SEEN[:1])[0].tolist(),
        "~of another image": model.logits(LISTS[:1], images=[IMAGES[1:2]])[0].tolist(),
        "~text": model.logits(LISTS[1:2])[0].tolist(),
        "prompt": first.prompt,
        "~measured": first.log_probabilities,
        "~scored": scored[0, new].tolist(),
        "likeliest": likeliest[0, new].tolist(),
        "cached": tokens_of(model, GREEDY),
        "of others": tokens_of(model, GREEDY, images=[[255 - image for image in images] for images in SEEN]),
        "text": tokens_of(model, GREEDY, LISTS[1:2], None),
        "beams": tokens_of(model, BEAMS),
        "drawn": tokens_of(model, DRAWN),
    }
    if spec.world_size == 1:
        found["recomputed"] = [recomputed(model, *each) for each in zip(LISTS, SEEN, strict=True)]
        found |= {"beams, alone": each_alone(model, BEAMS), "drawn, alone": each_alone(model, DRAWN)}
    model.close()
    if spec.world_size == 1:  # the decoder of the same checkpoint, without eyes
        blind = spec.model_copy(update={"model": spec.model.model_copy(update={"vision": None})})
        model = Model(*open_network(Weights(run_dir, blind, RunDir(run_dir))))
        found["blind"] = tokens_of(model, GREEDY, LISTS[1:2], None)
        model.close()
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
