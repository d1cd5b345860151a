"""What an indexed data set holds, for programs and for people."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from orchestrator.data.checks import tokenizer_name
from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest


def describe(prefix: Path) -> dict[str, object]:
    """What a data set holds: its header, and its manifest where there is one."""
    header, manifest = read_index(prefix), read_manifest(prefix)
    return {
        **header._asdict(),
        "prefix": str(prefix),
        "manifest": manifest.model_dump(mode="json") if manifest else None,
    }


def print_description(prefix: Path, as_json: bool) -> None:
    """Print what a data set holds."""
    if as_json:
        typer.echo(json.dumps(describe(prefix), indent=2))
        return
    header, manifest = read_index(prefix), read_manifest(prefix)
    is_split = manifest is not None and manifest.sentences is not None
    per_document = f" ({header.sequences / max(header.documents, 1):.1f} per document)"
    is_chat = manifest is not None and manifest.counted_tokens is not None
    lines = {
        "conversations" if is_chat else "documents": f"{header.documents}",
        "sentences" if is_split else "sequences": f"{header.sequences}{per_document * is_split}",
        "tokens": f"{header.tokens} ({header.tokens / max(header.documents, 1):.1f} "
        f"per {'conversation' if is_chat else 'document'})",
        "stored as": f"{header.dtype}, {header.bin_bytes} bytes",
        "manifest": "none: made by another tool",
    }
    if manifest is not None:
        lines |= {
            "tokenizer": f"{tokenizer_name(manifest)} ({manifest.vocab_size} tokens)",
            "tokenizer hash": manifest.tokenizer_hash,
            "ends documents": "yes" if manifest.options.get("append_eod") else "no",
            "input": f"{len(manifest.sources)} files, {manifest.text_bytes} bytes of text"
            + f"; {len(manifest.left_out)} links, folders or kinds of files left out" * bool(manifest.left_out),
            "left out": f"{manifest.empty_documents} empty, {manifest.skipped_records} unreadable",
        }
        if manifest.counted_tokens is not None:
            part = manifest.counted_tokens / max(header.tokens, 1)
            lines["counted tokens"] = f"{manifest.counted_tokens} ({part:.1%}): the assistant's turns"
            day = manifest.options.get("chat_date")
            lines["chat template"] = str(manifest.options.get("chat_template")) + f", on {day}" * (day is not None)
            del lines["ends documents"], lines["sequences"]
        if manifest.images is not None:
            size, patch = manifest.image_size, manifest.patch_size
            shape = "any size" if manifest.merge_size is not None else f"{size} x {size} pixels"
            lines["images"] = f"{manifest.images} of {shape}, in patches of {patch} x {patch}"
        if manifest.cut_sentences:
            lines["cut"] = f"{manifest.cut_sentences} sentences of more than 512 tokens, stored in pieces"
        del lines["manifest"]
    for name, value in lines.items():
        typer.echo(f"{name:16}{value}")
