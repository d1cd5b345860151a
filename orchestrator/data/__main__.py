"""The data programs: `python -m orchestrator.data tokenize | prepare | train-tokenizer | inspect`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.data.commands import Request, build_app, job_and_run
from orchestrator.data.description import describe, print_description
from orchestrator.data.indexed_dataset.manifest import Manifest, manifest_path, read_manifest
from orchestrator.data.request import PrepareRequest, ShowRequest, TokenizeRequest, TrainTokenizerRequest
from orchestrator.errors import MissingDependency, OrchestratorError
from orchestrator.run_directory.events.types import DataFailed, DataPrepared
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import module_command
from orchestrator.spec.sections.notifications import NotificationsSpec

try:
    from orchestrator.data.inspection import first_documents
    from orchestrator.data.missing_datasets import prepare
    from orchestrator.data.progress import Display
    from orchestrator.data.tokenization import tokenize
    from orchestrator.data.tokenizers.training import train_tokenizer
except ModuleNotFoundError as error:
    if error.name not in ("numpy", "tokenizers"):
        raise
    missing: str | None = error.name
else:
    missing = None


_SECONDS_TO_START = 5.0


def run(command: str, request: Request, as_json: bool) -> int:
    """Carry out one command in this process."""
    if missing is not None:
        raise MissingDependency(f"data {command} needs {missing}: pip install 'megatron-orchestrator[train]'")
    if isinstance(request, TokenizeRequest | PrepareRequest):
        try:
            return _tokenize(request, as_json) if isinstance(request, TokenizeRequest) else _prepare(request, as_json)
        except KeyboardInterrupt:
            print("interrupted; finished shards are kept: run the same command again to continue", file=sys.stderr)
            return 130
    if isinstance(request, TrainTokenizerRequest):
        size, left_out = train_tokenizer(request)
        fewer = (
            f" of the {request.vocab_size} requested: each word of the text is a token already; more text gives more"
        )
        text = f"wrote {request.output}: {size} tokens{fewer if size < request.vocab_size else ''}"
        others = [{"path": str(each.path), "reason": each.reason} for each in left_out]
        _print(as_json, text, output=str(request.output), vocab_size=size, left_out=others)
        return 0
    return _inspect(request, as_json)


def _tokenize(request: TokenizeRequest, as_json: bool) -> int:
    started = time.monotonic()
    with Display() as display:
        manifests = tokenize(request, display)
    seconds = time.monotonic() - started
    written = []
    for key, manifest in zip(request.json_keys, manifests, strict=True):
        written.append(_record(request.prefix(key), manifest))
        if not as_json:
            print(_wrote(request.prefix(key), manifest))
    if as_json:
        _print(as_json, "", seconds=round(seconds, 3), datasets=written)
    return 0


def _tell(run: RunDir, notifications: NotificationsSpec) -> None:
    """A run that waits for this job in the queue never starts: tell whom its spec names, and wait for that a while."""
    if notifications.ways:
        program = module_command("orchestrator.launch.notifications", str(run.path))
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(program, timeout=_SECONDS_TO_START + notifications.timeout * len(notifications.ways))


def _prepare(request: PrepareRequest, as_json: bool) -> int:
    """Make what a job lacks. A run directory that was named hears how it went."""
    started = time.monotonic()
    job, run = job_and_run(request)
    job_id = os.environ.get("SLURM_JOB_ID")
    try:
        made = prepare(
            job.data,
            request.workers,
            lambda line: print(line, file=sys.stderr, flush=True),
            sentences=job.model.reads_sentences,
            vision=job.model.vision,
        )
    except OrchestratorError as error:
        if run is not None:
            run.append(DataFailed(job_id=job_id, message=str(error)))
            if job_id is not None:
                _tell(run, job.notifications)
        raise
    seconds = round(time.monotonic() - started, 3)
    if run is not None:
        paths = tuple(source.entry.path for source, _ in made)
        run.append(DataPrepared(job_id=job_id, made=paths, seconds=seconds))
    if as_json:
        datasets = [_record(Path(source.entry.path), manifest) for source, manifest in made]
        _print(as_json, "", seconds=seconds, datasets=datasets)
        return 0
    for source, manifest in made:
        print(_wrote(Path(source.entry.path), manifest))
    if not made:
        print(f"nothing to make: {'all data sets exist' if job.data.blend else 'the job names no data sets'}")
    return 0


def _record(prefix: Path, manifest: Manifest) -> dict[str, object]:
    return {"prefix": str(prefix), **manifest.model_dump(mode="json", exclude={"sources"})}


def _wrote(prefix: Path, manifest: Manifest) -> str:
    left_out = f", {manifest.empty_documents} empty left out" if manifest.empty_documents else ""
    if manifest.skipped_records:
        left_out += f", {manifest.skipped_records} unreadable skipped: see {manifest.skipped_report}"
    if manifest.left_out:
        left_out += f", {len(manifest.left_out)} links, folders or kinds of files left out: see {manifest_path(prefix)}"
    documents = f"{manifest.documents} {'documents' if manifest.counted_tokens is None else 'conversations'}"
    if manifest.sentences is not None:
        documents += f" of {manifest.sentences} sentences"
    counted = "" if manifest.counted_tokens is None else f", of which {manifest.counted_tokens} count"
    stored = f"bytes, as {manifest.dtype}" if manifest.tokenizer.type == "byte_level" else manifest.dtype
    images = f", {manifest.images} images" if manifest.images is not None else ""
    return f"wrote {prefix}: {documents}, {manifest.tokens} tokens ({stored}){counted}{images}{left_out}"


def _inspect(request: ShowRequest, as_json: bool) -> int:
    texts = list(first_documents(request))
    if as_json:
        _print(as_json, "", **describe(request.prefix), shown=texts)
        return 0
    print_description(request.prefix, as_json)
    manifest = read_manifest(request.prefix)
    is_chat = manifest is not None and manifest.counted_tokens is not None
    for number, text in enumerate(texts):
        print(f"--- {'document' if not is_chat else 'conversation'} {number}\n{text}")
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
