"""A checkpoint of ours as the folder of a Hugging Face model, a tensor at a time, its adapters added to the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from orchestrator.conversion.hugging_face.adapters import adapted, adapter_of
from orchestrator.conversion.hugging_face.config_json import to_config
from orchestrator.conversion.hugging_face.families.registry import family_of_checkpoint
from orchestrator.conversion.hugging_face.images.processor_files import image_token, token_ids, write_processor
from orchestrator.conversion.hugging_face.tokenizer_files import SpecialIds, write_tokenizer
from orchestrator.conversion.hugging_face.transforms import TRANSFORMS
from orchestrator.conversion.progress import progress
from orchestrator.conversion.shapes import shape_of, shapes_of_weight
from orchestrator.conversion.staging import drafted, require_free, require_room
from orchestrator.conversion.tensors.shards import Entry, ShardFiles, in_shards
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.conversion.tensors.threads import in_threads
from orchestrator.conversion.weight_mapping import Family, Weight
from orchestrator.data.tokenizers.copies import GENERATION, came_with
from orchestrator.data.tokenizers.vocabulary import vocabulary_size
from orchestrator.errors import CheckpointError, UserError
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import file_record, read_commit, verify
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec

_TENSORS = ".distcp"
_NO_WEIGHT = re.compile(r"(chained_\d+\.)?optimizer\.|rng/|train_state")
_SHOWN = 4

WithTokenizer: TypeAlias = Literal["yes", "no", "if-possible"]


@dataclass(frozen=True)
class Source:
    """A model in a checkpoint. `rows` is the size of its vocabulary, `dtype` what is written; None: as it is stored."""

    weights: StoredWeights
    model: ModelSpec
    family: Family
    rows: int
    dtype: torch.dtype | None

    def entries(self) -> list[Entry]:
        """What will be written. Raises CheckpointError when the checkpoint does not hold the model."""
        found = []
        weights = list(self.family.weights(self.model))
        used = {key for weight in weights for key in weight.rule.keys}
        used |= {key for weight in weights for key in self._beside(weight)}
        others = [key for key in self.weights.keys() if key not in used and not _NO_WEIGHT.match(key)]  # noqa: SIM118
        if others:
            raise CheckpointError(
                f"the checkpoint holds {', '.join(others[:_SHOWN])}{' …' if len(others) > _SHOWN else ''}, "
                f"which {self.family.name} does not have",
                code="unexpected_tensors",
            )
        for weight in weights:
            self._check(weight)
            if not weight.is_first:
                continue
            shape = shape_of(weight.rule.ours, self.model, self._stored_rows(weight))
            dtype = self._dtype(weight)
            parts = self._parts(weight, torch.empty(shape, dtype=dtype, device="meta"))
            named = zip(weight.theirs, parts, strict=True)
            found += [Entry(name, (*weight.stacked, *part.shape), dtype) for name, part in named]
        by_name = {entry.name: entry for entry in found}
        found += [replace(by_name[of], name=copy) for copy, of in self.family.further_copies_of(self.model).items()]
        return [*found, *(Entry(name, tuple(tensor.shape), tensor.dtype) for name, tensor in self.unused())]

    def tensors(self, weight: Weight) -> Iterator[torch.Tensor]:
        """What a weight is there, with its adapter. Raises UserError when a number is too large for the format that was
        asked for.
        """
        if not weight.rule.stacked:
            yield from self._tensors(weight)
            return
        every = [self._tensors(weight._replace(place=(*weight.place[:-1], at))) for at in range(weight.within[-1])]
        yield from (torch.stack(parts) for parts in zip(*every, strict=True))

    def _tensors(self, weight: Weight) -> Any:
        whole = adapted(weight, self.weights, self.model)
        return self._parts(weight, narrowed(whole, self._dtype(weight), weight.theirs[0]))

    def unused(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What transformers has beside these weights, and computes nothing with."""
        if self.family.unused:
            dtype, width = (
                self.dtype or self.weights.dtype("vision.positions"),
                self.model.image_encoder.hidden_size,
            )
            for name, number in self.family.unused.items():
                yield name, torch.full((width,), number, dtype=dtype)

    def copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What layers that predict further tokens have of the tables a second time."""
        weights = {weight.theirs[0]: weight for weight in self.family.weights(self.model) if not weight.place}
        for copy, of in self.family.further_copies_of(self.model).items():
            [tensor] = self.tensors(weights[of])
            yield copy, tensor

    def _dtype(self, weight: Weight) -> torch.dtype:
        wanted = torch.float32 if weight.rule.stays_fp32 else self.dtype
        return wanted or self.weights.dtype(weight.rule.keys[0])

    def _parts(self, weight: Weight, tensor: torch.Tensor) -> Any:
        return TRANSFORMS[weight.rule.transform].to_theirs(tensor, self.model, self.rows)

    def _beside(self, weight: Weight) -> dict[str, tuple[int, int]]:
        """Of the adapter of a weight the keys, each with its shape; nothing where there is none."""
        adapter = adapter_of(weight.rule, self.model)
        return {} if adapter is None else adapter.shapes

    def _check(self, weight: Weight) -> None:
        rows = self._stored_rows(weight)
        shapes = shapes_of_weight(weight, self.model, rows)
        for name, shape in {**shapes, **self._beside(weight)}.items():
            require_stored(self.weights, name, (*weight.within, *shape))

    def _stored_rows(self, weight: Weight) -> int:
        """Of a table of tokens, which may be padded."""
        key = weight.rule.keys[0]
        return max(self.weights.shape(key)[0] if key in self.weights else 0, self.rows)


def require_stored(weights: StoredWeights, key: str, shape: tuple[int, ...]) -> None:
    """Raises CheckpointError when a checkpoint has no tensor of this shape."""
    if key not in weights:
        raise CheckpointError(
            f"the checkpoint has no {key}: it is not the model that its run describes", code="missing_tensors"
        )
    if (stored := weights.shape(key)) != shape:
        raise CheckpointError(
            f"{key} of the checkpoint is {stored}, which is not the model that its run describes",
            code="tensor_shape_differs",
        )


def narrowed(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """A tensor in a format. Raises UserError, which names it, when a number is too large for that."""
    found = tensor.to(dtype)
    if dtype == torch.float16 != tensor.dtype and not torch.equal(found.isfinite(), tensor.isfinite()):
        raise UserError(f"{name} has numbers too large for fp16: export it as bf16 or fp32", code="too_large_for_fp16")
    return found


def export(
    checkpoint: Path,
    job: JobSpec,
    target: Path,
    *,
    most_bytes: int,
    dtype: torch.dtype | None,
    tokenizer: WithTokenizer,
    threads: int,
    leave_free: int = 0,
) -> dict[str, Any]:
    """Write the folder `target`, which appears when it is whole and leaves so many bytes of the disk free; says what
    was written.

    Raises UserError when the model is of no family, or `target` exists; CheckpointError when the checkpoint does not
    fit its spec; JobError when there is no room for it.
    """
    family = family_of_checkpoint(checkpoint, job)
    rows = vocabulary(job).size
    require_free(target)
    source = Source(StoredWeights(checkpoint), job.model, family, rows, dtype)
    shards = in_shards(source.entries(), most_bytes)
    require_room(target, sum(entry.bytes for shard in shards for entry in shard), leave_free)
    with drafted(target) as draft:
        special, left_out = _write_tokenizer(job, draft, tokenizer)
        _write_weights(source, shards, draft, threads)
        if job.model.has_vision:
            write_processor(job.model.image_encoder, draft)
        ids = special.record | (special.of_decoder if job.model.family.is_encoder_decoder else {})
        generation = {**{key: value for key, value in ids.items() if value is not None}, **came_with(draft, rows)}
        ids |= {key: generation[key] for key in ids if key in generation}
        config = _with_ids(to_config(job.model, family, rows), family, ids, job, rows)
        written = dtype or source.weights.dtype("embedding.word_embeddings.weight")
        config["torch_dtype"] = str(written).removeprefix("torch.")
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (draft / GENERATION).unlink(missing_ok=True)
        if family.generates:
            (draft / GENERATION).write_text(json.dumps(generation, indent=2) + "\n")
    files = list(target.iterdir())
    size = sum(file.stat().st_size for file in files)
    said = {"path": str(target), "family": family.name, "files": len(files), "bytes": size}
    return {**said, "tokenizer_left_out": left_out}


def _with_ids(
    config: dict[str, Any], family: Family, ids: dict[str, int | None], job: JobSpec, rows: int
) -> dict[str, Any]:
    """A config.json with the ids of special tokens: those of text, and that which stands for images."""
    images = family.images
    if images is None:
        return config | ids
    found = {images.image_id: rows - 1}
    if not means_no_text(job):
        with suppress(UserError):  # it is left out, or that is the reason why it is
            found = {images.image_id: image_token(job.data.tokenizer, job.model.image_encoder.kind.token)}
            found |= token_ids(job.data.tokenizer, images.other_ids)
    text = {"text_config": config["text_config"] | ids} if images.nests else ids
    return {**config, **found, **text}


def require_whole(checkpoint: Path) -> None:
    """Raises CheckpointError where a file is missing or is not what the commit marker says. Of the files of tensors,
    which hold the optimizer's too, only the size is compared: what is needed of them is compared when it is read.
    """
    commit = read_commit(checkpoint)
    findings = verify(checkpoint, contents=False)
    if commit is not None and not findings:
        small = [name for name in commit.files if not name.endswith(_TENSORS)]
        changed = [name for name in small if file_record(checkpoint / name) != commit.files[name]]
        findings = [f"{checkpoint / name} is damaged" for name in changed]
    if findings:
        raise CheckpointError("; ".join(findings), code="damaged_checkpoint")


def _write_tokenizer(job: JobSpec, folder: Path, wanted: WithTokenizer) -> tuple[SpecialIds, str | None]:
    """Also says why none was written that was wanted."""
    if wanted == "no":
        return SpecialIds(), None
    if means_no_text(job):
        return SpecialIds(), "the job reads random tokens and names no tokenizer of this vocabulary"
    try:
        if job.model.has_vision:
            image_token(job.data.tokenizer, job.model.image_encoder.kind.token)
        return write_tokenizer(job.data.tokenizer, folder), None
    except UserError as error:
        if wanted == "yes":
            raise
        return SpecialIds(), str(error)


def means_no_text(job: JobSpec) -> bool:
    """Whether the token ids mean no text: they are random, and the vocabulary is not that of the job's tokenizer."""
    tokenizer = job.data.tokenizer
    if not job.data.random_tokens or tokenizer.path is not None:
        return False
    return job.model.vocab_size not in (None, vocabulary_size(tokenizer))


def _write_weights(source: Source, shards: list[list[Entry]], folder: Path, threads: int) -> None:
    total = sum(entry.bytes for shard in shards for entry in shard)
    with ShardFiles(folder, shards) as files, progress(total, "exporting") as advance:

        def convert(weight: Weight) -> None:
            for name, tensor in zip(weight.theirs, source.tensors(weight), strict=True):
                files.write(name, tensor)
                advance(tensor.nbytes)

        in_threads(convert, [each for each in source.family.weights(source.model) if each.is_first], threads)
        for name, tensor in (*source.copies(), *source.unused()):
            files.write(name, tensor)
        files.finish()
