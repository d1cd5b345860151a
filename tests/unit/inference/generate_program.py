"""One rank: generate from a checkpoint with the cache, and again by recomputing everything for each token.

`generate_program.py RUN_DIR JOB OUT`: writes {"cached": …, "recomputed": …} to OUT/rank-N.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.inference.generation import Generator
from orchestrator.inference.loading import open_network
from orchestrator.inference.model import Model
from orchestrator.portable import Weights
from orchestrator.rundir import RunDir
from orchestrator.spec.loading import load_resolved

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TOKENS = 12
LISTS = [[7, 8, 9], [1, 2, 3, 4, 5], [250, 299]]


def generate(generator: Generator, prompt: list[int], count: int, **options: Any) -> list[int]:
    return list(generator.generate(prompt, max_new_tokens=count, end=-1, **options))


def recomputed(generator: Generator) -> list[int]:
    """Greedy tokens, each from a forward pass over everything before it."""
    tokens = list(PROMPT)
    for _ in range(TOKENS):
        tokens += generate(generator, tokens, 1, temperature=0.0, top_k=0, seed=1)
    return tokens[len(PROMPT) :]


def main() -> int:
    run_dir, job, out = map(Path, sys.argv[1:])
    network, commit = open_network(Weights(run_dir, load_resolved(job), RunDir(run_dir)))
    generator = Generator(network.module, network.ranks, network.groups, network.device, network.vocab_size)
    model = Model(network, commit)
    likelihoods, likeliest = model.log_probabilities(LISTS)
    found: dict[str, Any] = {
        "logits": [row[: len(tokens)].tolist() for row, tokens in zip(model.logits(LISTS), LISTS, strict=True)],
        "alone": model.logits(LISTS[:1])[0].tolist(),
        "log-probabilities": likelihoods.tolist(),
        "likeliest": likeliest.tolist(),
        "cached": generate(generator, PROMPT, TOKENS, temperature=0.0, top_k=0, seed=1),
        "recomputed": recomputed(generator),
        "drawn": generate(generator, PROMPT, TOKENS, temperature=1.0, top_k=20, seed=5),
        "other seed": generate(generator, PROMPT, TOKENS, temperature=1.0, top_k=20, seed=6),
    }
    end = found["cached"][4]
    found["ended"] = list(generator.generate(PROMPT, max_new_tokens=TOKENS, temperature=0.0, top_k=0, seed=1, end=end))
    model.close()
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
