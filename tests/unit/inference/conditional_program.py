"""One rank: what a T5 writes for a few prompts, and what it should, token by token without a cache.

`conditional_program.py RUN_DIR JOB OUT`: writes it to OUT/rank-N.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator.data.families.t5 import decoder_start
from orchestrator.errors import UserError
from orchestrator.inference.loading import open_network
from orchestrator.inference.model import Model
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.loading import load_resolved

PROMPTS = [[7, 8, 9], [1, 2, 3, 4, 5], [249, 240], [3, 1, 4, 1, 5, 9, 2, 6]]
TOKENS = 10
GREEDY = {"max_new_tokens": TOKENS, "temperature": 0}


def recomputed(model: Model, prompt: list[int]) -> list[int]:
    """Greedy tokens, each from a pass over the encoder and all of the decoder's tokens."""
    row = [decoder_start(model.tokenizer)]
    for _ in range(TOKENS):
        row.append(int(model.logits([row], encoder_tokens=[prompt])[0, -1].argmax()))
    return row[1:]


def off(model: Model) -> float:
    """The largest difference of the log-probabilities of drawn tokens, with the cache, from those of a pass without."""
    options = {"max_new_tokens": TOKENS, "seed": 9, "temperature": 2.0, "log_probabilities": True}
    worst = 0.0
    for prompt, each in zip(PROMPTS, model.generate(PROMPTS, options, ends=[]), strict=True):
        row = [decoder_start(model.tokenizer), *each.tokens]
        whole = model.logits([row], encoder_tokens=[prompt])[0, :-1].log_softmax(-1)
        expected = [whole[place, token].item() for place, token in enumerate(each.tokens)]
        assert each.log_probabilities is not None
        worst = max(worst, *(abs(a - b) for a, b in zip(expected, each.log_probabilities, strict=True)))
    return worst


def refusal(call: Any) -> str:
    try:
        call()
    except UserError as error:
        return str(error)
    return ""


def main() -> int:
    run_dir, job, out = map(Path, sys.argv[1:])
    model = Model(*open_network(Weights(run_dir, load_resolved(job), RunDir(run_dir))))

    def written(prompts: list[list[int]], **options: Any) -> list[list[int]]:
        return [each.tokens for each in model.generate(prompts, {"max_new_tokens": TOKENS, **options}, ends=[])]

    begin = [[decoder_start(model.tokenizer), 3]] * 2
    both = model.logits(begin, encoder_tokens=PROMPTS[:2])
    found: dict[str, Any] = {
        "cached": written(PROMPTS, temperature=0),
        "drawn": written(PROMPTS, seed=3, top_k=30),
        "beams": written(PROMPTS, num_beams=3),
        "same": off(model) < 1e-4,
        "shape": list(both.shape),
        "padding": bool((both[0] - model.logits(begin[:1], encoder_tokens=PROMPTS[:1])[0]).abs().max() < 1e-5),
        "encoder": bool((both[0] - both[1]).abs().max() > 1e-3),
        "refusal": refusal(lambda: model.logits(begin)),
    }
    if model.network.ranks.world_size == 1:
        found |= {
            "recomputed": [recomputed(model, prompt) for prompt in PROMPTS],
            "drawn alone": [written([prompt], seed=3, top_k=30)[0] for prompt in PROMPTS],
            "beams alone": [written([prompt], num_beams=3)[0] for prompt in PROMPTS],
        }
    model.close()
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
