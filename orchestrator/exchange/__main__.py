"""`python -m orchestrator.exchange`: what `checkpoint export` and `checkpoint import` start.

Standard output is one JSON object: what was written, or {"error": …, "exit_code": …}.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip

from orchestrator.errors import OrchestratorError
from orchestrator.exchange.configuration import read_config
from orchestrator.exchange.exporting import export
from orchestrator.exchange.families.choice import family_of_type
from orchestrator.exchange.importing import import_weights
from orchestrator.portable import job_of
from orchestrator.spec.loading import load_resolved

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def main() -> int:
    """Convert one checkpoint; 0, or the exit code of what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.exchange", description=__doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    out = ways.add_parser("export")
    out.add_argument("checkpoint", type=Path)
    out.add_argument("target", type=Path)
    out.add_argument("--most-bytes", type=int, required=True)
    out.add_argument("--dtype", choices=_DTYPES)
    out.add_argument("--no-tokenizer", action="store_true")
    into = ways.add_parser("import")
    into.add_argument("source", type=Path)
    into.add_argument("resolved", type=Path)
    into.add_argument("target", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        answer = _convert(arguments)
    except OrchestratorError as error:
        print(json.dumps({"error": str(error), "exit_code": error.exit_code}))
        return error.exit_code
    except OSError as error:
        print(json.dumps({"error": f"{error.strerror or error}: {error.filename}", "exit_code": 1}))
        return 1
    print(json.dumps(answer))
    return 0


def _convert(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.way == "export":
        return export(
            arguments.checkpoint,
            job_of(arguments.checkpoint),
            arguments.target,
            most_bytes=arguments.most_bytes,
            dtype=_DTYPES[arguments.dtype] if arguments.dtype else None,
            with_tokenizer=not arguments.no_tokenizer,
        )
    family = family_of_type(read_config(arguments.source).get("model_type"))
    return import_weights(arguments.source, load_resolved(arguments.resolved), family, arguments.target)


if __name__ == "__main__":
    sys.exit(main())
