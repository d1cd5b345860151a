"""`python -m orchestrator.inference FOLDER`: what `generate` starts, once for each process that holds a part."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import MissingDependency, OrchestratorError, UserError
from orchestrator.inference.images import Image
from orchestrator.inference.model import Model
from orchestrator.inference.program import add_weights, exit_code, loaded
from orchestrator.inference.texts import Continuation, finite
from orchestrator.spec.prompts import Line, read_prompts, refuse_lines
from orchestrator.spec.vision import MARK

_DAYS = 30 * 24 * 3600.0
"""Seconds that ranks wait for what a person types."""
HELD = 1 << 28
"""Bytes of a file's images that are kept until they are seen, 800 of 336 pixels; the others are read twice."""


def main() -> int:
    """Print continuations (rank 0): as they come, or as JSON. 0, or the exit code of what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.inference", description=__doc__)
    add_weights(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", default="", help="text to continue")
    what.add_argument("--file", type=Path, help="prompts, a JSON object a line; the results are lines too")
    what.add_argument("--interactive", action="store_true", help="continue every line of standard input")
    parser.add_argument("--image", type=Path, action="append", default=[], help="an image of the prompt, of every line")
    parser.add_argument("--options", type=json.loads, default={}, help="fields of a Generation, as JSON")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="one JSON object in place of text")
    arguments = parser.parse_args()
    return exit_code(_run, arguments)


def _run(arguments: argparse.Namespace) -> None:
    patience = _DAYS if arguments.interactive else None
    with loaded(arguments, patience) as model:
        if arguments.file is not None:
            continue_prompts(model, arguments)
        elif arguments.interactive:
            _interactive(model, arguments.options, arguments.image)
        elif arguments.json:
            [written] = model.generate([arguments.prompt], arguments.options, images=[arguments.image])
            _say(model, json.dumps(told(model, arguments.prompt, written)) + "\n")
        else:
            _stream(model, arguments.prompt, arguments.options, arguments.image)


def continue_prompts(model: Model, arguments: argparse.Namespace) -> None:
    lines = read_prompts(arguments.file, arguments.options, sees=model.job.model.has_vision)
    images = _checked(model, lines)
    for first in range(0, len(lines), arguments.batch_size):
        batch = slice(first, first + arguments.batch_size)
        prompts, options = [line.prompt for line in lines[batch]], [line.options for line in lines[batch]]
        for prompt, written in zip(prompts, model.generate(prompts, options, images=images[batch]), strict=True):
            _say(model, json.dumps(told(model, prompt, written)) + "\n")


def _checked(model: Model, lines: Sequence[Line]) -> list[Sequence[Image]]:
    """The images of each line: their pixels, where there is room for them, else their files. Raises UserError that
    names every line that is wrong, before the first is written."""
    found: list[Sequence[Image]] = []
    wrong, room = [], HELD
    for line in lines:
        found.append(line.images)
        try:
            [request] = model.requests([line.prompt], line.options, [line.images])
        except MissingDependency:
            raise
        except UserError as error:
            wrong.append(f"{line.place}: {error}")
            continue
        if request.images is not None:
            room -= sum(image.nbytes for image in request.images.pixels)
            if room >= 0:
                found[-1] = request.images.pixels
    refuse_lines(wrong)
    return found


def _interactive(model: Model, options: dict[str, Any], images: Sequence[Path]) -> None:
    """Until the end of the input; every line has the same images. What is wrong with one line is said, and the next one
    is read."""
    first = "x" + MARK * len(images)
    model.requests([first], {**options, "max_new_tokens": 1, "min_new_tokens": 0}, [images])
    asks = sys.stdin.isatty()  # of the first process, who alone speaks
    while True:
        _say(model, "> " if asks else "")
        line = model.from_first(sys.stdin.readline() if model.is_first else None)
        if not line:
            _say(model, "\n" if asks else "")
            return
        try:
            _stream(model, line.removesuffix("\n"), options, images)
        except OrchestratorError as error:
            _say(model, f"error: {error}\n")


def _stream(model: Model, prompt: str, options: dict[str, Any], images: Sequence[Path]) -> None:
    """The prompt and what follows it, as it comes; every rank runs through the pieces."""
    pieces = model.stream([prompt], options, images=[images])
    for number, piece in enumerate(pieces):
        _say(model, (prompt if number == 0 else "") + piece.text)
    _say(model, "\n")


def told(model: Model, prompt: str, written: Continuation) -> dict[str, Any]:
    """A continuation as plain data."""
    measured, drafts, accepted = written.log_probabilities, written.draft_tokens, written.accepted_tokens
    return {
        "prompt": prompt,
        "text": written.text,
        "finish": written.finish,
        "tokens": written.tokens,
        **({"log_probabilities": list(map(finite, measured))} if measured is not None else {}),
        **({"score": finite(written.score)} if written.score is not None else {}),
        **({"draft_tokens": drafts, "accepted_tokens": accepted} if drafts else {}),
        **({"acceptance_rate": accepted / drafts} if drafts else {}),
        "iteration": model.commit.iteration,
    }


def _say(model: Model, text: str) -> None:
    if model.is_first:
        sys.stdout.write(text)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
