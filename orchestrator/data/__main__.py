"""The data programs: `python -m orchestrator.data tokenize | train-tokenizer | inspect`."""

from __future__ import annotations

import json
import os
import sys
import time

from orchestrator.data.commands import Request, build_app, describe, print_description
from orchestrator.data.request import ShowRequest, TokenizeRequest, TrainTokenizerRequest
from orchestrator.errors import MissingDependency, OrchestratorError

try:
    from orchestrator.data.inspection import first_documents
    from orchestrator.data.progress import Display
    from orchestrator.data.tokenization import tokenize
    from orchestrator.data.training import train_tokenizer
except ModuleNotFoundError as error:
    if error.name not in ("numpy", "tokenizers"):
        raise
    missing: str | None = error.name
else:
    missing = None


def run(command: str, request: Request, as_json: bool) -> int:
    """Carry out one command in this process."""
    if missing is not None:
        raise MissingDependency(f"data {command} needs {missing}: pip install 'megatron-orchestrator[train]'")
    if isinstance(request, TokenizeRequest):
        try:
            return _tokenize(request, as_json)
        except KeyboardInterrupt:
            print("interrupted; finished shards are kept: run the same command again to go on", file=sys.stderr)
            return 130
    if isinstance(request, TrainTokenizerRequest):
        size = train_tokenizer(request)
        _print(as_json, f"wrote {request.output}: {size} tokens", output=str(request.output), vocab_size=size)
        return 0
    return _inspect(request, as_json)


def _tokenize(request: TokenizeRequest, as_json: bool) -> int:
    started = time.monotonic()
    with Display() as display:
        manifests = tokenize(request, display)
    seconds = time.monotonic() - started
    written = []
    for key, manifest in zip(request.json_keys, manifests, strict=True):
        written.append({"prefix": str(request.prefix(key)), **manifest.model_dump(mode="json", exclude={"sources"})})
        left_out = f", {manifest.empty_documents} empty left out" if manifest.empty_documents else ""
        if manifest.skipped_records:
            left_out += f", {manifest.skipped_records} unreadable skipped: see {manifest.skipped_report}"
        if not as_json:
            total = f"{manifest.documents} documents, {manifest.tokens} tokens"
            print(f"wrote {request.prefix(key)}: {total} ({manifest.dtype}){left_out}")
    if as_json:
        _print(as_json, "", seconds=round(seconds, 3), datasets=written)
    return 0


def _inspect(request: ShowRequest, as_json: bool) -> int:
    texts = list(first_documents(request))
    if as_json:
        _print(as_json, "", **describe(request.prefix), shown=texts)
        return 0
    print_description(request.prefix, as_json)
    for number, text in enumerate(texts):
        print(f"--- document {number}\n{text}")
    return 0


def _print(as_json: bool, text: str, **record: object) -> None:
    print(json.dumps(record, indent=2) if as_json else text)


def main() -> int:
    """Run one command; returns its exit code: 0 done, 1 the job failed, 2 the input is wrong, 130 interrupted."""
    # Workers are processes of our own; the library's threads beside them would only fight for the same cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if "train-tokenizer" in sys.argv[1:2] else "false"
    try:
        build_app(run)(prog_name="python -m orchestrator.data")
    except OrchestratorError as error:
        if "--json" in sys.argv:
            record = {"error": type(error).__name__, "message": str(error), "exit_code": error.exit_code}
            print(json.dumps(record, indent=2))
        else:
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
