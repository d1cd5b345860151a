"""The Python interface: a network loaded from a checkpoint, and what it can be asked."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from orchestrator.data.families.t5 import decoder_start
from orchestrator.data.tokenizers.copies import ends_beside
from orchestrator.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from orchestrator.errors import UserError
from orchestrator.fields.values import resolve_environment
from orchestrator.inference import scoring
from orchestrator.inference.generation import writer
from orchestrator.inference.generation.decoder import ModelRunner
from orchestrator.inference.generation.encoder_decoder import EncoderDecoderRunner
from orchestrator.inference.generation.runners import runner_of
from orchestrator.inference.images import Image, Images, each_with_images, patch_token, seen, tokens_and_marks
from orchestrator.inference.length_limits import limit_of, refusal
from orchestrator.inference.loading import open_network
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request, token_ids
from orchestrator.inference.texts import Continuation, TextDelta
from orchestrator.models.registry import FAMILIES, ModelFamily
from orchestrator.planning.layout.replica import at_layout
from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.runtime.processes.process_groups import leave_failed_groups, stop_process_groups
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.self_contained_checkpoints import open_weights
from orchestrator.spec.generation import Generation, check_drafts, options_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.prompts import NO_TEXT, is_text

Prompt = str | Sequence[int]
Options = Generation | Mapping[str, Any]
Opening = Callable[[Store | None], tuple[Network, Commit]]


class Model:
    """A network and its tokenizer. A context manager, which ends the processes' groups; one can be open at a time.

    Where the network is split over several processes (torchrun), every one of them must make the same calls; each gets
    the whole answer.
    """

    def __init__(self, network: Network, commit: Commit, opened: Opening | None = None) -> None:
        """`opened`: what has opened the network; `reload` needs it, and says where processes meet."""
        self.network = network
        self._opened = opened
        self.commit = commit
        """The checkpoint that was loaded."""

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        stop_process_groups(after_error=kind is not None)

    def close(self) -> None:
        """Leave the other processes. The model cannot be used afterwards."""
        stop_process_groups()

    def reload(self) -> None:
        """Load the network again, after an error in a call that only some of the processes may have had: the others
        wait for them. Every process must call this; those that wait get an error, and call it, too.

        Meanwhile prompts can be made requests of. Raises CheckpointError when there is no whole checkpoint any more.
        """
        assert self._opened is not None, "it was loaded by `load`"
        store = leave_failed_groups(self.network.groups.store)
        self.network = self.network.emptied()
        for cached in ("_writer", "_passes"):
            self.__dict__.pop(cached, None)
        gc.collect()  # groups are left, and memory is given back, once nothing refers to them
        if self.network.device.is_cuda:
            torch.cuda.empty_cache()
        self.network, self.commit = self._opened(store)

    @property
    def job(self) -> JobSpec:
        """What it was trained as, at the layout that it is loaded in."""
        return self.network.job

    @property
    def is_first(self) -> bool:
        """Whether this is the one process that speaks for all."""
        return self.network.ranks.is_first

    def from_first(self, value: Any) -> Any:
        """What the first process gives, on every process."""
        return Control(self.network.groups.control).from_first(value)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, without its padding."""
        return self.network.vocab_size

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequence that it can take; None where nothing limits them."""
        model = self.job.model
        return model.positions if model.position_embedding_type == "learned_absolute" else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the job names. Raises UserError when it cannot be read."""
        return load_tokenizer(self.job.data.tokenizer)

    def generate(
        self,
        prompts: Sequence[Prompt],
        options: Options | Sequence[Options] | None = None,
        *,
        images: Sequence[Sequence[Image]] | None = None,
        ends: Sequence[int] | None = None,
        batch_size: int = 32,
    ) -> list[Continuation]:
        """What the network writes after each prompt, in their order.

        `prompts`: texts, or lists of token ids. `options`: a `Generation`, or its fields as a mapping, for all prompts
        or one for each. `images`, for a network that sees: those of each prompt, as many as it has of `<image>` (a list
        of ids of `IMAGE`), where they stand in their order; paths, what is in a file, or pixels [3, size, size] in
        uint8. `ends`: ids that end a text; those of `Model.ends` by default. `batch_size`: how many prompts are worked
        on together, which changes no result (up to rounding).

        Raises UserError when an option is wrong, a prompt is too long for what is asked, or has not the images that it
        names, or the network writes no text.

            model.generate(["def main("], {"max_new_tokens": 50, "temperature": 0})[0].text
            model.generate(["<image>\nWhat is this?"], images=[["cat.jpg"]])[0].text
        """
        done: list[Continuation | None] = [None] * len(prompts)
        for piece in self._pieces(prompts, options, images, ends, batch_size, shows=False):
            if piece.done is not None:
                done[piece.number] = piece.done
        return [continuation for continuation in done if continuation is not None]

    def stream(
        self,
        prompts: Sequence[Prompt],
        options: Options | Sequence[Options] | None = None,
        *,
        images: Sequence[Sequence[Image]] | None = None,
        ends: Sequence[int] | None = None,
        batch_size: int = 32,
    ) -> Iterator[TextDelta]:
        """`generate` token by token, as they come: of each prompt pieces of text, the last with the whole.

        Every process must take all of them, or stop after the same one. Beam search has one piece, at its end.
        """
        return self._pieces(prompts, options, images, ends, batch_size, shows=True)

    def _pieces(
        self,
        prompts: Sequence[Prompt],
        options: Options | Sequence[Options] | None,
        images: Sequence[Sequence[Image]] | None,
        ends: Sequence[int] | None,
        batch_size: int,
        *,
        shows: bool,
    ) -> Iterator[TextDelta]:
        if batch_size < 1:
            raise UserError(f"batch_size {batch_size}: it must be at least 1", code="batch_size_not_positive")
        requests = self.requests(prompts, options, images)
        used = self.ends if ends is None else tuple(token_ids(ends, "ends"))
        if not all(0 <= end < self.vocab_size for end in used):
            raise UserError(
                f"ends {list(used)}: the vocabulary has {self.vocab_size} tokens", code="token_outside_vocabulary"
            )
        for first in range(0, len(requests), batch_size):
            yield from self._writer.write(requests[first : first + batch_size], used, shows=shows)

    def write(self, requests: Sequence[Request]) -> Iterator[TextDelta]:
        """`stream` for one batch of what `requests` has checked, on another process perhaps."""
        return self._writer.write(requests, self.ends, shows=True)

    def requests(
        self,
        prompts: Sequence[Prompt],
        options: Options | Sequence[Options] | None = None,
        images: Sequence[Sequence[Image]] | None = None,
    ) -> list[Request]:
        """The prompts as tokens, each with its options and images, numbered and checked; see `generate` for what is
        raised."""
        each: Sequence[Options]
        if options is None:
            each = [Generation()] * len(prompts)
        elif isinstance(options, Generation | Mapping):
            each = [options] * len(prompts)
        else:
            each = options
        if len(each) != len(prompts):
            raise UserError(
                f"{len(prompts)} prompts have {len(each)} options; give one for all or one for each",
                code="option_count_differs",
            )
        return [
            self._request(number, prompt, given if isinstance(given, Generation) else options_of(given), own)
            for number, (prompt, given, own) in enumerate(
                zip(prompts, each, each_with_images(len(prompts), images, "prompts"), strict=True)
            )
        ]

    def _request(self, number: int, prompt: Prompt, options: Generation, given: Sequence[Image]) -> Request:
        tokens = self._encoded(number, prompt) if isinstance(prompt, str) else token_ids(prompt, f"prompt {number}")
        if options.add_bos:
            if self.tokenizer.bos is None:
                raise UserError(
                    f"add_bos: the {self.tokenizer.spec.type} tokenizer has no token that begins a text",
                    code="no_begin_token",
                )
            tokens = [self.tokenizer.bos, *tokens]
        if not tokens:
            tokens = [self.tokenizer.eod]  # what stands before a document in training
        tokens, images = seen(tokens, given, self.job.model.vision, self._patch, f"prompt {number}")
        self._check_ids(tokens, f"prompt {number}")
        self._check_length(tokens, options, images)
        if options.stop and self._tokenizer_if_any is None:
            raise UserError(
                "stop: without a tokenizer there is no text to search for a stop string", code="stop_without_tokenizer"
            )
        return Request(number, tokens, options, images)

    def _encoded(self, number: int, prompt: str) -> list[int]:
        if not is_text(prompt):
            raise UserError(f"prompt {number} {NO_TEXT}", code="not_unicode")
        return self.encode(prompt)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; of a network that sees with `IMAGE` where an image stands."""
        model = self.job.model
        if not model.has_vision:
            return self.tokenizer.encode(text)
        return tokens_and_marks(self.tokenizer, text, model.image_encoder.kind.around)

    @cached_property
    def _patch(self) -> int:
        """The token that keeps the place of a patch, whatever it is: the tokenizer's own, or what ends a document."""
        return patch_token(self._tokenizer_if_any, self.job.model, self.vocab_size)

    def _check_length(self, tokens: list[int], options: Generation, images: Images | None) -> None:
        prompt, new = len(tokens), options.max_new_tokens
        most, taken = limit_of(self.job.model, prompt, self.longest)
        if self.longest is None or not self._family.is_encoder_decoder:
            said = refusal(prompt, new, most, taken, 0 if images is None else images.tokens)
        elif prompt > most:
            said = f"the prompt has {prompt} tokens, but {taken}: shorten the prompt to {most} tokens at most"
        else:
            said = refusal(1, new, most, f"{taken} for what is written, its beginning included")
        if said is not None:
            raise UserError(said, code="sequence_too_long")

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a text: the tokenizer's, and those of the generation settings that an imported model came with;
        none where the tokenizer has none, or is not that of this vocabulary.
        """
        tokenizer = self._tokenizer_if_any
        if tokenizer is None:
            return ()
        own = [] if tokenizer.end is None or tokenizer.end >= self.vocab_size else [tokenizer.end]
        return tuple(dict.fromkeys([*own, *ends_beside(tokenizer.spec, self.vocab_size)]))

    @cached_property
    def _tokenizer_if_any(self) -> Tokenizer | None:
        """None where it cannot be read: a network can go on from token ids without one."""
        try:
            return self.tokenizer
        except UserError:
            return None

    @cached_property
    def _writer(self) -> writer.Writer:
        """What text is written with; it changes the network's attention, so only once it is asked for."""
        return writer.Writer(self.network, self._passes, self.longest, self._tokenizer_if_any)

    @property
    def _family(self) -> ModelFamily:
        return self.job.model.family

    @cached_property
    def _passes(self) -> ModelRunner:
        if self._family.no_generation is not None:
            able = " and ".join(family.name for family in FAMILIES.values() if family.no_generation is None)
            raise UserError(
                f"a {self._family.name} cannot generate text: generation supports architectures {able}",
                code="model_cannot_generate",
            )
        if not self._family.is_encoder_decoder:
            return runner_of(self.network)
        start = decoder_start(self.tokenizer)
        if start >= self.vocab_size:
            raise UserError(
                f"the decoder begins with the tokenizer's token {start}, and the vocabulary has "
                f"{self.vocab_size}: it is not this model's tokenizer",
                code="tokenizer_differs",
            )
        return EncoderDecoderRunner(self.network, start)

    def logits(
        self,
        tokens: Sequence[Sequence[int]],
        *,
        encoder_tokens: Sequence[Sequence[int]] | None = None,
        images: Sequence[Sequence[Image]] | None = None,
    ) -> torch.Tensor:
        """The scores of every next token: `[b, s, v]` in fp32, on this process's device, the same on every process.

        `tokens`: b lists of ids, s of them in the longest. `logits[i, j]` are those of the token that follows
        `tokens[i][: j + 1]`; positions behind the end of a shorter list mean nothing. v is `vocab_size`: the
        vocabulary's padding is cut off. Of a T5 `tokens` are the decoder's, from the one that it begins with on, and
        `encoder_tokens` as many lists that the encoder reads.

        `images`: those of each list, as `generate` has them: where one stands the list has `IMAGE`, and s counts the
        tokens of its patches, `model.vision.tokens_per_image`, in its place.

        All b · s · v are held at once; `log_probabilities` gives less. Raises UserError when a list is empty or too
        long for the network, or an id is none of the vocabulary.
        """
        tokens, placed = self._seen(tokens, images)
        if self._family.is_encoder_decoder:
            if encoder_tokens is None or len(encoder_tokens) != len(tokens):
                raise UserError("a T5 needs as many lists of encoder_tokens as of tokens", code="unequal_lists")
            self._check_lists(encoder_tokens, least=1)
            self._check_lists(tokens, least=1)
            assert isinstance(self._passes, EncoderDecoderRunner)
            return scoring.whole(self.network, self._passes.logits(_lists(encoder_tokens), _lists(tokens)), tokens)
        if encoder_tokens is not None:
            raise UserError(f"a {self._family.name} has no encoder: leave encoder_tokens out", code="no_encoder")
        self._check(tokens, least=1)
        return scoring.logits(self.network, tokens, placed)

    def log_probabilities(
        self, tokens: Sequence[Sequence[int]], *, images: Sequence[Sequence[Image]] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How likely each token was after those before it, and whether it was the likeliest: `[b, s - 1]` each.

        `tokens` and `images` as for `logits`, two tokens at least in each list, whose last one is not read: it may
        follow the last position. `[i, j]` are of `tokens[i][j + 1]`: the natural logarithm of its probability in fp32,
        and a bool. Positions behind the end of a shorter list, and those of patches, mean nothing.
        """
        tokens, placed = self._seen(tokens, images)
        self._check(tokens, least=2, unread=1)
        return scoring.log_probabilities(self.network, tokens, placed)

    def _seen(
        self, tokens: Sequence[Sequence[int]], images: Sequence[Sequence[Image]] | None
    ) -> tuple[list[list[int]], list[Images | None]]:
        """The lists with tokens for the patches of their images, and these."""
        each = zip(tokens, each_with_images(len(tokens), images, "lists"), strict=True)
        vision = self.job.model.vision
        found = [
            seen(token_ids(row, f"list {number}"), own, vision, self._patch, f"list {number}")
            for number, (row, own) in enumerate(each)
        ]
        return [row for row, _ in found], [own for _, own in found]

    def _check(self, tokens: Sequence[Sequence[int]], least: int, unread: int = 0) -> None:
        if not self._family.is_decoder_only:
            raise UserError(f"a {self._family.name} has no next token: this is for decoders", code="not_a_decoder")
        self._check_lists(tokens, least, unread)

    def _check_lists(self, tokens: Sequence[Sequence[int]], least: int, unread: int = 0) -> None:
        if not tokens:
            raise UserError("no tokens were given", code="no_tokens")
        for number, row in enumerate(tokens):
            if len(row) < least:
                raise UserError(
                    f"list {number} has {len(row)} tokens; at least {least} are needed", code="too_few_tokens"
                )
            if self.longest is not None and len(row) - unread > self.longest:
                raise UserError(
                    f"list {number} has {len(row)} tokens, but the model has learned {self.longest} positions: shorten "
                    f"it to {self.longest + unread} tokens at most",
                    code="sequence_too_long",
                )
            self._check_ids(row, f"list {number}")

    def _check_ids(self, ids: Sequence[int], what: str) -> None:
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            said = f"{what} has ids outside the vocabulary of {self.vocab_size} tokens"
            raise UserError(said, code="token_outside_vocabulary")


def _lists(tokens: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(row) for row in tokens]


def load(
    which: str | Path,
    *,
    iteration: int | None = None,
    tensor_model_parallel_size: int | None = None,
    pipeline_model_parallel_size: int | None = None,
    num_speculative_tokens: int = 0,
    patience: float | None = None,
) -> Model:
    """The model of a run's folder (its newest whole checkpoint, or that of `iteration`) or of a checkpoint's folder.

    It can be split otherwise than it was trained. By default a single process holds all of it, and under torchrun it
    has the job's own layout; the product of both sizes must be the number of processes. `num_speculative_tokens`: how
    many the layers of multi-token prediction draft at a time, for the model to verify in one pass. `patience`: seconds
    that processes wait for each other, ten minutes by default.

    Raises UserError when the folder is none of both, the layout does not fit or there are not as many layers that
    draft, CheckpointError when the checkpoint is not whole.

        with load("runs/gpt-small/3f9a1c2b") as model:
            model.logits([model.tokenizer.encode("def main(")])
    """
    weights = open_weights(Path(which).absolute())
    if weights.run is None and iteration is not None:
        raise UserError(f"{which} is one checkpoint: an iteration selects a checkpoint of a run", code="not_a_run")
    check_drafts(weights.job.model, num_speculative_tokens, weights.label)
    job = _laid_out(weights.job, tensor_model_parallel_size, pipeline_model_parallel_size)
    for name, value in job.launch.env.items():
        os.environ[name] = resolve_environment(value)
    weights, waiting = replace(weights, job=job), {} if patience is None else {"patience": patience}

    def opened(store: Store | None) -> tuple[Network, Commit]:
        return open_network(weights, iteration, store=store, num_speculative_tokens=num_speculative_tokens, **waiting)

    return Model(*opened(None), opened)


def _laid_out(job: JobSpec, tp: int | None, pp: int | None) -> JobSpec:
    """The job at these sizes. Raises UserError when they are not those of as many processes as there are."""
    world, own = int(os.environ.get("WORLD_SIZE", "1")), job.parallelism
    if tp is None and pp is None and world == 1:
        tp = pp = 1
    tp, pp = tp or own.tensor_model_parallel_size, pp or own.pipeline_model_parallel_size
    if tp * pp != world:
        raise UserError(
            f"tensor_model_parallel_size {tp} · pipeline_model_parallel_size {pp} = {tp * pp} processes are needed, "
            f"and there are {world}",
            code="process_count_differs",
        )
    return at_layout(job, tp, pp)
