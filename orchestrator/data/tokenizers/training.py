"""Learning a byte-level BPE from text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from orchestrator.data.input.documents import Document, read_documents
from orchestrator.data.input.sources import find_inputs, left_out_warnings, read_chunks
from orchestrator.data.request import TrainTokenizerRequest
from orchestrator.data.tokenizers.vocabulary import GPT2_EOD
from orchestrator.errors import JobError, OrchestratorError, UserError
from orchestrator.files.folder_tree import LeftOut
from orchestrator.run_directory.rundir import write_atomically, write_refusal


def train_tokenizer(request: TrainTokenizerRequest) -> tuple[int, list[LeftOut]]:
    """Learn a byte-level BPE and write its tokenizer.json; returns the size of its vocabulary, and what of the input's
    directories was not read.

    Id 0 is <|endoftext|>, which ends a document. Raises UserError for wrong input.
    """
    output = request.output
    if output == Path("-"):
        raise UserError(
            "--output - would be standard output, which is used for messages: name a file, like tokenizer.json",
            code="output_is_standard_output",
        )
    if output.is_dir():
        raise UserError(
            f"--output {output} is a folder; write a file name, like {output / 'tokenizer.json'}",
            code="output_is_folder",
        )
    if output.exists() and not request.overwrite:
        raise UserError(f"{output} exists already; add --overwrite to replace it", code="output_exists")
    tokenizer = LibraryTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=request.vocab_size,
        special_tokens=[GPT2_EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    texts = _Texts(request)
    for warning in left_out_warnings(texts.left_out):
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    tokenizer.train_from_iterator(iter(texts), trainer)
    if texts.error is not None:
        raise texts.error
    if not texts.documents:
        raise UserError(
            f"the input has no text: {texts.skipped} records could not be read. Nothing was written", code="no_text"
        )
    _save(tokenizer, output)
    return int(tokenizer.get_vocab_size()), texts.left_out


class _Texts:
    """The texts of a request, in batches. An error ends them and is kept: the library would wrap it in its own."""

    def __init__(self, request: TrainTokenizerRequest) -> None:
        self._request = request
        inputs = find_inputs(request)
        self.files, self.left_out = inputs.files, inputs.left_out
        self.documents = self.skipped = 0
        self.error: OrchestratorError | None = None

    def __iter__(self) -> Iterator[list[str]]:
        try:
            for chunk in read_chunks(self.files, self._request.json_keys):
                for block in chunk.blocks:
                    for record in read_documents(block, self._request.json_keys):
                        if isinstance(record, Document):
                            self.documents += any(record.texts)
                            yield list(record.texts)
                        elif self._request.on_error == "fail":
                            raise UserError(
                                f"{record}. {record.way_out}, or continue without such records with --on-error skip",
                                code="wrong_record",
                            )
                        else:
                            self.skipped += 1
        except OrchestratorError as error:
            self.error = error


def _save(tokenizer: LibraryTokenizer, output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, tokenizer.to_str(pretty=True))
    except OSError as error:
        raise write_refusal(error) or JobError(
            f"cannot write {output}: {error.strerror}", code="unwritable_output"
        ) from error
