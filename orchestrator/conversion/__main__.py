"""`python -m orchestrator.conversion`: what `checkpoint export`, `import` and `reshape` start.

Standard output is one JSON object: what was written, or {"error": …, "exit_code": …}.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip

from orchestrator.conversion.background_process import live_beside
from orchestrator.conversion.hugging_face.families.model_folder import family_of_folder
from orchestrator.conversion.hugging_face.hf_export import export, require_whole
from orchestrator.conversion.hugging_face.hf_import import import_weights
from orchestrator.conversion.hugging_face.peft import export_adapter
from orchestrator.conversion.megatron.checkpoints import describe, export_megatron, import_megatron
from orchestrator.conversion.reshaping import contents, reshape
from orchestrator.conversion.staging import draft_of
from orchestrator.conversion.tensors.threads import default_threads
from orchestrator.errors import OrchestratorError, is_full_disk
from orchestrator.self_contained_checkpoints import job_of
from orchestrator.spec.loading import load_resolved

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_PLACES = {
    "export": ("checkpoint", "target"),
    "import": ("source", "resolved", "target"),
    "inspect": ("checkpoint",),
    "reshape": ("checkpoint", "resolved", "target"),
    "to-megatron": ("checkpoint", "target"),
    "describe-megatron": ("checkpoint",),
    "from-megatron": ("checkpoint", "resolved", "target"),
}
"""What each way is given."""


def main() -> int:
    """Convert one checkpoint; 0, or the exit code of what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.conversion", description=__doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    programs = {name: ways.add_parser(name) for name in _PLACES}
    for name, places in _PLACES.items():
        for place in places:
            programs[name].add_argument(place, type=Path)
    out, into = programs["export"], programs["import"]
    out.add_argument("--most-bytes", type=int, required=True)
    out.add_argument("--dtype", choices=_DTYPES)
    out.add_argument("--tokenizer", choices=("yes", "no", "if-possible"), default="yes")
    out.add_argument("--adapter", metavar="BASE", help="the adapters alone, over this model")
    out.add_argument("--leave-free", type=int, default=0, help="bytes of room on the disk that are not to be used up")
    out.add_argument("--beside", type=int, metavar="PID", help="a training, which comes first and ends this with it")
    programs["from-megatron"].add_argument("--optimizer", action="store_true")
    for program in (out, into):
        program.add_argument("--threads", type=int, default=default_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        answer = _convert(arguments)
    except OrchestratorError as error:
        print(json.dumps({"error": str(error), "code": error.code, "exit_code": error.exit_code}))
        return error.exit_code
    except OSError as error:
        place = arguments.target if "target" in arguments else arguments.checkpoint
        said = f"{error.strerror or error}: {error.filename or place}"
        if is_full_disk(error):
            said = f"no room for {place} ({error.strerror}); nothing was left behind"
        print(json.dumps({"error": said, "exit_code": 1}))
        return 1
    print(json.dumps(answer))
    return 0


def _convert(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.way == "export":
        if arguments.beside is not None:
            live_beside(arguments.beside, draft_of(arguments.target))
        require_whole(arguments.checkpoint)
        job, dtype = job_of(arguments.checkpoint), _DTYPES[arguments.dtype] if arguments.dtype else None
        if arguments.adapter is not None:
            return export_adapter(arguments.checkpoint, job, arguments.target, base=arguments.adapter, dtype=dtype)
        return export(
            arguments.checkpoint,
            job,
            arguments.target,
            most_bytes=arguments.most_bytes,
            dtype=dtype,
            tokenizer=arguments.tokenizer,
            threads=arguments.threads,
            leave_free=arguments.leave_free,
        )
    if arguments.way == "inspect":
        return asdict(contents(arguments.checkpoint))
    if arguments.way == "to-megatron":
        return export_megatron(arguments.checkpoint, job_of(arguments.checkpoint), arguments.target)
    if arguments.way == "describe-megatron":
        return describe(arguments.checkpoint)
    if arguments.way == "from-megatron":
        job = load_resolved(arguments.resolved)
        return import_megatron(arguments.checkpoint, job, arguments.target, with_optimizer=arguments.optimizer)
    if arguments.way == "reshape":
        return reshape(arguments.checkpoint, load_resolved(arguments.resolved), arguments.target)
    family = family_of_folder(arguments.source)
    job = load_resolved(arguments.resolved)
    return import_weights(arguments.source, job, family, arguments.target, arguments.threads)


if __name__ == "__main__":
    sys.exit(main())
