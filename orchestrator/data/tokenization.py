"""Text into an indexed data set, chunk by chunk."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.data.chat.conversation_packing import loss_mask_prefix
from orchestrator.data.chat.encoding import IMAGES_DTYPE, MASK_DTYPE, ChatEncoder, chat_template, patch_token
from orchestrator.data.chat.stored_images import images_prefix
from orchestrator.data.chat.templates import ChatTemplate, reads_day
from orchestrator.data.indexed_dataset.header import partial_path
from orchestrator.data.indexed_dataset.manifest import LeftOutSource, Manifest, Source
from orchestrator.data.indexed_dataset.output import PartialOutput, open_output, skipped_path, unfinished_job
from orchestrator.data.input.images import pillow
from orchestrator.data.input.sentences import SENTENCE_RULES
from orchestrator.data.input.sources import (
    CHUNK_BYTES,
    InputFile,
    Inputs,
    find_inputs,
    left_out_warnings,
    read_chunks,
)
from orchestrator.data.progress import Display
from orchestrator.data.request import CHAT_GLOBS, TokenizeRequest
from orchestrator.data.tokenizers.encoding import ChunkEncoder
from orchestrator.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from orchestrator.data.workers import available_cores, ordered_map
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import MARK

MEGABYTE = 1_000_000
_DATE = "date of the chat template"
_CHUNK_BYTES_WITH_IMAGES = 1 << 13
"""Some ten conversations with images, each of which is a hundred times as long as its text."""


def tokenize(request: TokenizeRequest, display: Display, *, wait: bool = False) -> list[Manifest]:
    """Carry out a request; returns the manifest of each data set written, one per key. `wait`: until no other process
    writes it.

    The bytes written depend on the text, the tokenizer and the options alone: not on workers, shards or interruptions.
    Raises UserError for wrong input, DataIsHeld when another process writes it, JobError when it cannot be written.
    """
    tokenizer = load_tokenizer(request.tokenizer)
    if request.append_eod:
        _ = tokenizer.eod  # says so now, not in a worker, when there is none
    folder = partial_path(request.output_prefix)
    template = None
    if request.chat:
        request = replace(request, chat_date=request.chat_date or _day(folder))
        template = chat_template(tokenizer, request.chat_template, request.chat_date)
    if request.vision is not None:  # the same of these
        _, _ = pillow(), patch_token(tokenizer, request.vision.kind)
    inputs = find_inputs(request, CHAT_GLOBS) if request.chat else find_inputs(request)
    files = inputs.files
    if request.chat:
        _refuse_other_than_json(files)
    elif len(request.json_keys) > 1:
        _refuse_without_fields(files, request.json_keys)
    outputs = _outputs(request, tokenizer)
    identity = _identity(request, tokenizer, template, files)
    with open_output(
        folder, list(outputs), list(outputs.values()), request.split_sentences, identity, request.overwrite, wait
    ) as out:
        if template is not None and template.ends_without_answer:
            display.warn(_never_stops(template))
        for warning in left_out_warnings(inputs.left_out):
            display.warn(warning)
        if not out.progress.finished:
            _encode_all(request, files, out, display)
        manifests = _manifests(request, tokenizer, template, inputs, out)
        for manifest, key in zip(manifests, request.json_keys, strict=True):
            if manifest.documents == 0:
                out.discard()
                raise UserError(
                    _nothing_found(manifest, f"text for {key!r}" if not request.chat else "conversation"),
                    code="no_text",
                )
        for warning in _about_conversations(manifests[0]):
            display.warn(warning)
        has_no_images = request.vision is None and (request.chat or request.overwrite)
        return out.finish(manifests, images_prefix(request.output_prefix) if has_no_images else None)


def _day(folder: Path) -> str:
    """That on which the work began: what was interrupted goes on with it."""
    begun = unfinished_job(folder).get(_DATE)
    return begun if isinstance(begun, str) else date.today().isoformat()


def _encode_all(request: TokenizeRequest, files: Sequence[InputFile], out: PartialOutput, display: Display) -> None:
    progress = out.progress
    total = sum(file.bytes for file in files)
    display.begin(total, progress)
    shard = request.shard_size * MEGABYTE
    chunk_bytes = CHUNK_BYTES if request.vision is None else _CHUNK_BYTES_WITH_IMAGES
    chunks = read_chunks(files, request.json_keys, progress.position, min(chunk_bytes, shard))
    most = max(1, -(-(total - progress.disk_bytes) // chunk_bytes))
    workers = min(request.workers or available_cores(), most)
    build = partial(make_encoder, request)
    uncommitted = 0
    with closing(ordered_map(build, chunks, workers, lambda chunk: chunk.place)) as encoded:
        for chunk, result in encoded:
            if result.malformed and request.on_error == "fail":
                first = result.malformed[0]
                raise UserError(
                    f"{first}. {first.way_out}, or leave such records out: data tokenize --on-error skip",
                    code="wrong_record",
                )
            out.append(result, chunk.end, chunk.text_bytes, chunk.disk_bytes)
            uncommitted += chunk.text_bytes + (len(result.keys[-1].tokens) if request.vision is not None else 0)
            if uncommitted >= shard:
                out.commit()
                uncommitted = 0
            display.update(progress)
    display.end(progress)


def _never_stops(template: ChatTemplate) -> str:
    return (
        f"chat template {template.name}: what it marks with {{% generation %}} ends with the answer itself, so that a "
        "model trained with it never learns to stop. Name a copy that writes {{ eos_token }} before "
        "{% endgeneration %}, or a template that ends answers, such as vicuna: --chat-template, in a job "
        "data.chat.template"
    )


def _about_conversations(manifest: Manifest) -> list[str]:
    """What a person should know of what a data set has not."""
    found = []
    if manifest.shortened_conversations:
        found.append(
            f"in {manifest.shortened_conversations} of {manifest.documents} conversations the chat template leaves out "
            "part of the assistant's turns, such as its reasoning once other turns follow, and those turns count "
            'without it. To learn each as it was said, write a line that ends with it, with "weight": 0 on the '
            "assistant's turns before"
        )
    if manifest.unpictured_conversations:
        found.append(
            f"{manifest.unpictured_conversations} of {manifest.documents} conversations have {MARK} in their text and "
            'no image; there it is text. Images are named by "image" or "images", or in parts of a turn'
        )
    if manifest.images == 0:
        found.append("none of the conversations has an image")
    return found


def make_encoder(request: TokenizeRequest) -> ChunkEncoder | ChatEncoder:
    """The encoder of one worker."""
    tokenizer = load_tokenizer(request.tokenizer)
    if request.chat:
        return ChatEncoder(
            tokenizer, chat_template(tokenizer, request.chat_template, request.chat_date), request.vision
        )
    return ChunkEncoder(tokenizer, request.json_keys, request.append_eod, request.split_sentences)


def _outputs(request: TokenizeRequest, tokenizer: Tokenizer) -> dict[Path, np.dtype[Any]]:
    """The data sets to write, by prefix, and the type of each."""
    if request.chat:
        prefix = request.output_prefix
        outputs = {prefix: tokenizer.dtype, loss_mask_prefix(prefix): MASK_DTYPE}
        return outputs if request.vision is None else {**outputs, images_prefix(prefix): IMAGES_DTYPE}
    return {request.prefix(key): tokenizer.dtype for key in request.json_keys}


def _refuse_other_than_json(files: Sequence[InputFile]) -> None:
    for file in files:
        if file.kind != "json":
            raise UserError(
                f"input {file.path}: conversations are read from .jsonl, .ndjson and .json, a line each",
                code="file_kind_not_for_chat",
            )


def _refuse_without_fields(files: Sequence[InputFile], keys: Sequence[str]) -> None:
    for file in files:
        if file.kind not in ("json", "parquet"):
            listed = " ".join(f"--json-key {key}" for key in keys)
            raise UserError(
                f"input {file.path}: plain text has no fields, and {listed} asks for {len(keys)} of them",
                code="plain_text_has_no_fields",
            )


def _identity(
    request: TokenizeRequest, tokenizer: Tokenizer, template: ChatTemplate | None, files: Sequence[InputFile]
) -> dict[str, object]:
    """All that decides the output: an unfinished tokenization is continued only when this is the same."""
    listing = "\n".join(f"{file.path} {file.kind} {file.bytes} {file.modified}" for file in files)
    identity: dict[str, object] = {
        "input files": hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest(),
        "tokenizer": tokenizer.content_hash,
        "json keys": list(request.json_keys),
        "end of documents": request.append_eod,
    }
    if request.split_sentences:  # an identity without it is of whole documents
        identity["sentences"] = SENTENCE_RULES
    if template is not None:
        identity["chat template"] = hashlib.sha256(template.content.encode()).hexdigest()
        if reads_day(template):
            identity[_DATE] = request.chat_date
    if request.vision is not None:
        identity["images"] = [request.vision.image_size, request.vision.patch_size]
        if request.image_encoder is not None:
            beyond = (request.pooled_tokens, request.merge_size, request.smallest_image_size)
            identity["image encoder"] = [request.image_encoder, *(each for each in beyond if each is not None)]
    return identity


def _recorded_options(request: TokenizeRequest, template: ChatTemplate | None) -> dict[str, Any]:
    """The options that decide what is in a data set, by their names."""
    options = asdict(request)
    kept = ["json_keys", "globs", "excludes", "txt_documents", "on_error", "append_eod", "split_sentences"]
    if request.chat:
        kept += ["chat", "chat_template"]
    if template is not None:
        options["chat_template"] = template.name
        kept += ["chat_date"] if reads_day(template) else []
    return {name: options[name] for name in kept}


def _manifests(
    request: TokenizeRequest,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    inputs: Inputs,
    out: PartialOutput,
) -> list[Manifest]:
    """One for each key; the mask and the images of conversations have none of their own."""
    vision = request.vision
    images = None if vision is None else out.progress.keys[-1].counted
    tokenizer_spec = request.tokenizer.model_copy(update=_absolute(request.tokenizer))
    options = _recorded_options(request, template)
    sources = [
        Source(path=_printable(file.path), bytes=file.bytes, modified=file.modified / 1e9) for file in inputs.files
    ]
    left_out = [LeftOutSource(path=_printable(each.path), reason=_printable(each.reason)) for each in inputs.left_out]
    return [
        Manifest(
            tokenizer=tokenizer_spec,
            tokenizer_hash=tokenizer.content_hash,
            vocab_size=tokenizer.vocab_size,
            largest_token_id=key.largest,
            dtype=tokenizer.dtype.name,
            documents=key.documents,
            sentences=key.sequences if request.split_sentences else None,
            cut_sentences=key.cut,
            tokens=key.tokens,
            counted_tokens=key.counted if request.chat else None,
            images=images,
            image_size=vision.image_size if vision is not None else None,
            patch_size=vision.patch_size if vision is not None else None,
            image_encoder=request.image_encoder,
            pooled_tokens=request.pooled_tokens,
            merge_size=request.merge_size,
            smallest_image_size=request.smallest_image_size,
            unpictured_conversations=key.unpictured,
            shortened_conversations=key.shortened,
            text_bytes=out.progress.text_bytes,
            empty_documents=key.empty,
            skipped_records=out.progress.skipped,
            skipped_report=str(skipped_path(out.prefixes[0])) if out.progress.skipped else None,
            options=options,
            sources=sources,
            left_out=left_out,
            created=time.time(),
        )
        for _, key in zip(request.json_keys, out.progress.keys, strict=False)
    ]


def _absolute(tokenizer: TokenizerSpec) -> dict[str, str]:
    """The files of a tokenizer as absolute paths, so that the manifest's can be found from any folder."""
    files = {"path": tokenizer.path, "merges": tokenizer.merges}
    return {name: str(Path(value).absolute()) for name, value in files.items() if value is not None}


def _printable(path: object) -> str:
    """A file name may hold bytes that are not UTF-8; JSON may not."""
    return str(path).encode(errors="backslashreplace").decode()


def _nothing_found(manifest: Manifest, what: str) -> str:
    return (
        f"the input has no {what}: {manifest.empty_documents} empty documents, "
        f"{manifest.skipped_records} skipped records. Nothing was written"
    )
