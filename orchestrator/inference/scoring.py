"""Logits, and log-probabilities of given tokens: one pass over whole sequences, without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orchestrator.inference.network import Network

Tokens = Sequence[Sequence[int]]


@torch.no_grad()
def logits(network: Network, tokens: Tokens) -> torch.Tensor:
    """[b, s, v] in fp32 on every rank; see `Model.logits`."""
    found, length = _pass(network, tokens), max(map(len, tokens))
    if found is None:
        found = network.empty(len(tokens), length, network.vocab_size, dtype=torch.float32)
    return network.from_source(found.float().contiguous())


@torch.no_grad()
def log_probabilities(network: Network, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """[b, s - 1] in fp32 and bool, on every rank; see `Model.log_probabilities`."""
    found, shape = _pass(network, tokens), (len(tokens), max(map(len, tokens)) - 1)
    likelihoods = network.empty(*shape, dtype=torch.float32)
    likeliest = network.empty(*shape, dtype=torch.uint8)
    if found is not None:
        following = _padded(network, tokens)[:, 1:]
        for row, wanted in enumerate(following):  # one by one: all in fp32 could need more memory than the network
            scores = found[row, :-1].float()
            likelihoods[row] = scores.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
            likeliest[row] = scores.argmax(-1) == wanted
    return network.from_source(likelihoods), network.from_source(likeliest).bool()


def _padded(network: Network, tokens: Tokens) -> torch.Tensor:
    """[b, s], filled up at the end, where no token that counts looks at it."""
    length = max(map(len, tokens))
    return network.tensor([[*row, *[0] * (length - len(row))] for row in tokens])


def _pass(network: Network, tokens: Tokens) -> torch.Tensor | None:
    """Logits [b, s, v] on the last stage, in the network's precision; None on the others."""
    padded = _padded(network, tokens)
    batch, length = padded.shape
    received = network.receive(length, batch)
    if received is not None:
        network.module.set_input_tensor([received])
    positions = torch.arange(length, device=padded.device).expand_as(padded)
    out: torch.Tensor = network.module(padded, positions, None, runtime_gather_output=True)
    if network.ranks.is_last_stage:
        return out[..., : network.vocab_size]
    network.send(out)
    return None
