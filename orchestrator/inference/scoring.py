"""Logits, and log-probabilities of given tokens: one pass over whole sequences, without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from orchestrator.inference.images import Images, batch_of_images
from orchestrator.inference.network import Network
from orchestrator.runtime.processes.process_groups import get_tensor_model_parallel_group

Tokens = Sequence[Sequence[int]]
Seen = Sequence[Images | None]
"""The images among each list of tokens."""

_TOKENS_AT_ONCE = 1024


@torch.no_grad()
def logits(network: Network, tokens: Tokens, images: Seen) -> torch.Tensor:
    """[b, s, v] in fp32 on every rank; see `Model.logits`."""
    return whole(network, _pass(network, tokens, images, gathers=True), tokens)


def whole(network: Network, found: torch.Tensor | None, tokens: Tokens) -> torch.Tensor:
    """What the last stage has found of `tokens`, [b, s, v], in fp32 on every rank."""
    if found is None:
        found = network.empty(len(tokens), max(map(len, tokens)), network.vocab_size, dtype=torch.float32)
    return network.from_source(found.float().contiguous())


@torch.no_grad()
def log_probabilities(network: Network, tokens: Tokens, images: Seen) -> tuple[torch.Tensor, torch.Tensor]:
    """[b, s - 1] in fp32 and bool, on every rank; see `Model.log_probabilities`.

    Each tensor-parallel rank looks at its own part of the vocabulary; four numbers for each token are exchanged.
    """
    # The last token of a list is scored and not read.
    part = _pass(network, [row[:-1] for row in tokens], images, gathers=False)
    shape = (len(tokens), max(map(len, tokens)) - 1)
    likelihoods = network.empty(*shape, dtype=torch.float32)
    likeliest = network.empty(*shape, dtype=torch.uint8)
    if part is not None:
        first = network.ranks.tp * part.size(-1)
        part[..., max(network.vocab_size - first, 0) :] = torch.finfo(part.dtype).min  # the vocabulary's padding
        following = _padded(network, tokens)[:, 1:]
        # A part of one list after the other: all in fp32 could need more memory than the network.
        own = torch.stack([_facts_of_list(*pair, first) for pair in zip(part, following, strict=True)])
        every = network.empty(network.ranks.tp_size * len(own), *own.shape[1:], dtype=own.dtype)
        dist.all_gather_into_tensor(every, own, group=get_tensor_model_parallel_group())
        total, wanted, largest, place = every.view(-1, *own.shape).unbind(-1)
        likelihoods = (wanted.max(0).values - total.logsumexp(0)).float()
        best = place.gather(0, largest.max(0, keepdim=True).indices)[0]
        likeliest = (best == following).to(torch.uint8)
    return network.from_source(likelihoods), network.from_source(likeliest).bool()


def _facts_of_list(part: torch.Tensor, wanted: torch.Tensor, first: int) -> torch.Tensor:
    """[s, 4], see `_facts`."""
    parts = [slice(start, start + _TOKENS_AT_ONCE) for start in range(0, len(part), _TOKENS_AT_ONCE)]
    return torch.cat([_facts(part[some], wanted[some], first) for some in parts])


def _facts(part: torch.Tensor, wanted: torch.Tensor, first: int) -> torch.Tensor:
    """[s, 4] in fp64, of a part [s, v] of the logits, which begins with the token `first`: the logarithm of the sum of
    their exponentials, the logit of the wanted token [s] (-inf where it is in another part), the largest logit, and of
    which token that is.
    """
    scores, local = part.float(), wanted - first
    is_here = (local >= 0) & (local < part.size(-1))
    logit = scores.gather(-1, local.clamp(0, part.size(-1) - 1)[:, None])[:, 0]
    largest, place = scores.max(-1)
    logit = logit.masked_fill(~is_here, -torch.inf)
    return torch.stack([scores.logsumexp(-1), logit, largest, place + first], -1).double()


def _padded(network: Network, tokens: Tokens) -> torch.Tensor:
    """[b, s], filled up at the end, where no token that counts looks at it."""
    length = max(map(len, tokens))
    return network.tensor([[*row, *[0] * (length - len(row))] for row in tokens])


def _pass(network: Network, tokens: Tokens, images: Seen, *, gathers: bool) -> torch.Tensor | None:
    """Logits on the last stage, in the network's precision; None on the others. [b, s, v], or with the vocabulary's
    padding this rank's part of them.
    """
    padded = _padded(network, tokens)
    batch, length = padded.shape
    received = network.receive(length, batch)
    if received is not None:
        network.module.set_input_tensor([received])
    positions = torch.arange(length, device=padded.device).expand_as(padded)
    seen = batch_of_images(network, images, length)
    out: torch.Tensor = network.module(padded, positions, None, runtime_gather_output=gathers, **seen)
    if network.ranks.is_last_stage:
        return out[..., : network.vocab_size] if gathers else out
    network.send(out)
    return None
