"""`python -m orchestrator.inference RUN_DIR|CHECKPOINT --prompt TEXT`: continue a text with a checkpoint, or with a
run's newest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.data.tokenizers import Tokenizer, load_tokenizer
from orchestrator.errors import OrchestratorError, UserError
from orchestrator.inference.loading import load_generator
from orchestrator.portable import Weights, open_weights
from orchestrator.runtime.process_groups import stop_process_groups
from orchestrator.spec.values import resolve_environment


def main() -> int:
    """Print the continuation to standard output as it comes (rank 0), or one JSON object with --json."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.inference", description=__doc__)
    parser.add_argument("weights", type=Path, help="folder of a run or of a checkpoint")
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the most probable token")
    parser.add_argument("--top-k", type=int, default=0, help="draw from this many most probable tokens; 0 is all")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--iteration", type=int, help="the checkpoint of this iteration instead of the newest")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        _generate(open_weights(arguments.weights.absolute()), arguments)
    except OrchestratorError as error:
        # In one write: every rank says it, and print would write the end of the line by itself.
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _generate(weights: Weights, arguments: argparse.Namespace) -> None:
    job = weights.job
    for name, value in job.launch.env.items():
        os.environ[name] = resolve_environment(value)
    tokenizer = load_tokenizer(job.data.tokenizer)
    prompt = tokenizer.encode(arguments.prompt) or [tokenizer.eod]
    longest = len(prompt) + arguments.max_new_tokens
    if job.model.position_embedding_type == "learned_absolute" and longest > job.model.positions:
        raise UserError(
            f"{len(prompt)} prompt tokens + {arguments.max_new_tokens} new ones = {longest}, but the model has learned "
            f"{job.model.positions} positions; ask for at most {max(job.model.positions - len(prompt), 0)} new tokens"
        )
    generator, commit = load_generator(weights, arguments.iteration)
    tokens = generator.generate(
        prompt,
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
        end=tokenizer.eod,
    )
    if arguments.json:
        text = tokenizer.decode(list(tokens))
        if generator.is_first:
            answer = {"prompt": arguments.prompt, "text": text, "iteration": commit.iteration}
            print(json.dumps(answer), flush=True)
    else:
        _stream(tokenizer, tokens, arguments.prompt if generator.is_first else None)
    stop_process_groups()


def _stream(tokenizer: Tokenizer, tokens: Any, prompt: str | None) -> None:
    """Print the prompt and each piece of text as soon as it is whole; every rank must run through the tokens."""
    if prompt is not None:
        sys.stdout.write(prompt)
    ids: list[int] = []
    printed = 0
    for token in tokens:
        ids.append(token)
        if prompt is None:
            continue
        text = tokenizer.decode(ids)
        # A character can span tokens: hold back what does not decode yet.
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            sys.stdout.write(text[printed:])
            sys.stdout.flush()
            printed = len(text)
    if prompt is not None:
        sys.stdout.write(tokenizer.decode(ids)[printed:] + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
