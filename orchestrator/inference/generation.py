"""Autoregressive generation with a key/value cache, under tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.inference.contexts import StaticInferenceContext

from orchestrator.inference.sampling import sample
from orchestrator.runtime.device import Device
from orchestrator.runtime.process_groups import Groups, Ranks


class Generator:
    """A loaded network and where this rank stands in it. One sequence at a time."""

    def __init__(self, module: Any, ranks: Ranks, groups: Groups, device: Device, vocab_size: int) -> None:
        self._module, self._ranks, self._groups, self._device = module, ranks, groups, device
        self._vocab_size = vocab_size

    @property
    def is_first(self) -> bool:
        """Whether this is the one rank that speaks for all."""
        return self._ranks.is_first

    @torch.no_grad()
    def generate(
        self, prompt: list[int], *, max_new_tokens: int, temperature: float, top_k: int, seed: int, end: int
    ) -> Iterator[int]:
        """New token ids one by one, the same on every rank, until `end` or `max_new_tokens`."""
        generator = torch.Generator().manual_seed(seed)
        context = StaticInferenceContext(1, len(prompt) + max_new_tokens)
        tokens, offset = prompt, 0
        for _ in range(max_new_tokens):
            logits = self._next_logits(tokens, offset, context)
            offset += len(tokens)
            context.increment_sequence_len_offset(len(tokens))
            token = sample(logits[: self._vocab_size], temperature, top_k, generator)
            if token == end:
                return
            yield token
            tokens = [token]

    def _next_logits(self, tokens: list[int], offset: int, context: Any) -> torch.Tensor:
        """Logits [padded v] after the last of `tokens`, which stand at `offset`, on the host of every rank."""
        device, length, ranks = self._device.torch_device, len(tokens), self._ranks
        config = self._module.config
        if ranks.pp > 0:
            hidden = torch.empty(length, 1, config.hidden_size, dtype=config.pipeline_dtype, device=device)
            dist.recv(hidden, group=self._groups.pipeline, group_src=ranks.pp - 1)
            self._module.set_input_tensor([hidden])
        out = self._module(
            torch.tensor([tokens], device=device),
            torch.arange(offset, offset + length, device=device)[None],
            None,
            inference_context=context,
            runtime_gather_output=True,
        )
        logits: torch.Tensor
        if ranks.is_last_stage:
            logits = out[0, -1].float()
        else:
            dist.send(out.contiguous(), group=self._groups.pipeline, group_dst=ranks.pp + 1)
            logits = torch.empty(self._module.vocab_size, device=device)
        if ranks.pp_size > 1:
            dist.broadcast(logits, group=self._groups.pipeline, group_src=ranks.pp_size - 1)
        return logits.cpu()
