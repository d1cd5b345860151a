"""The Python interface: a network loaded from a checkpoint, and what it can be asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from orchestrator.checkpoints import Commit
from orchestrator.data.tokenizers import Tokenizer, load_tokenizer
from orchestrator.errors import UserError
from orchestrator.inference import scoring
from orchestrator.inference.loading import at_layout, open_network
from orchestrator.inference.network import Network
from orchestrator.portable import open_weights
from orchestrator.runtime.process_groups import stop_process_groups
from orchestrator.spec.job import JobSpec

_DECODERS = ("gpt", "mamba")


class Model:
    """A network and its tokenizer. A context manager, which ends the processes' groups; one can be open at a time.

    Where the network is split over several processes (torchrun), every one of them must make the same calls; each gets
    the whole answer.
    """

    def __init__(self, network: Network, commit: Commit) -> None:
        self.network = network
        self.commit = commit
        """The checkpoint that was loaded."""

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the other processes. The model cannot be used afterwards."""
        stop_process_groups()

    @property
    def job(self) -> JobSpec:
        """What it was trained as, at the layout that it is loaded in."""
        return self.network.job

    @property
    def is_first(self) -> bool:
        """Whether this is the one process that speaks for all."""
        return self.network.ranks.is_first

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

    def logits(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """The scores of every next token: `[b, s, v]` in fp32, on this process's device, the same on every process.

        `tokens`: b lists of ids, s of them in the longest. `logits[i, j]` are those of the token that follows
        `tokens[i][: j + 1]`; positions behind the end of a shorter list mean nothing. v is `vocab_size`: the
        vocabulary's padding is cut off.

        All b · s · v are held at once; `log_probabilities` gives less. Raises UserError when a list is empty or too
        long for the network, or an id is none of the vocabulary.
        """
        self._check(tokens, least=1)
        return scoring.logits(self.network, tokens)

    def log_probabilities(self, tokens: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """How likely each token was after those before it, and whether it was the likeliest: `[b, s - 1]` each.

        `tokens` as for `logits`, two at least in each list, whose last one is not read: it may follow the last
        position. `[i, j]` are of `tokens[i][j + 1]`: the natural logarithm of its probability in fp32, and a bool.
        Positions behind the end of a shorter list mean nothing.
        """
        self._check(tokens, least=2, unread=1)
        return scoring.log_probabilities(self.network, tokens)

    def _check(self, tokens: Sequence[Sequence[int]], least: int, unread: int = 0) -> None:
        if self.job.model.architecture not in _DECODERS:
            raise UserError(f"a {self.job.model.architecture} has no next token: logits are there for decoders")
        if not tokens:
            raise UserError("no tokens were given")
        for number, row in enumerate(tokens):
            if len(row) < least:
                raise UserError(f"list {number} has {len(row)} tokens; {least} at least are needed")
            if self.longest is not None and len(row) - unread > self.longest:
                raise UserError(f"list {number} has {len(row)} tokens; the model has {self.longest} positions")
            if not 0 <= min(row) <= max(row) < self.vocab_size:
                raise UserError(f"list {number} has ids that the vocabulary of {self.vocab_size} tokens has not")


def load(
    which: str | Path,
    *,
    iteration: int | None = None,
    tensor_model_parallel_size: int | None = None,
    pipeline_model_parallel_size: int | None = None,
) -> Model:
    """The model of a run's folder (its newest whole checkpoint, or that of `iteration`) or of a checkpoint's folder.

    It can be split otherwise than it was trained. By default a single process holds all of it, and under torchrun it
    has the job's own layout; the product of both sizes must be the number of processes.

    Raises UserError when the folder is none of both or the layout does not fit, CheckpointError when the checkpoint is
    not whole.

        with load("runs/gpt-small/20260102-030405-1a2b") as model:
            model.logits([model.tokenizer.encode("def main(")])
    """
    weights = open_weights(Path(which).absolute())
    if weights.run is None and iteration is not None:
        raise UserError(f"{which} is one checkpoint: an iteration goes with a run, whose checkpoint it chooses")
    job = _laid_out(weights.job, tensor_model_parallel_size, pipeline_model_parallel_size)
    network, commit = open_network(replace(weights, job=job), iteration)
    return Model(network, commit)


def _laid_out(job: JobSpec, tp: int | None, pp: int | None) -> JobSpec:
    """The job at these sizes. Raises UserError when they are not those of as many processes as there are."""
    world, own = int(os.environ.get("WORLD_SIZE", "1")), job.parallelism
    if tp is None and pp is None and world == 1:
        tp = pp = 1
    tp, pp = tp or own.tensor_model_parallel_size, pp or own.pipeline_model_parallel_size
    if tp * pp != world:
        raise UserError(
            f"tensor_model_parallel_size {tp} · pipeline_model_parallel_size {pp} = {tp * pp} processes are needed, "
            f"and there are {world}"
        )
    return at_layout(job, tp, pp)
