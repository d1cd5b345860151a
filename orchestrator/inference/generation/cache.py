"""Keys and values of the tokens so far, or the states behind them, and attention that keeps them.

A token's place in the cache is its position in the sequence. Prompts of different lengths are filled up at the end,
where causal attention does not look, and each row goes on behind its own prompt: what stands there is written over.
So are drafts of tokens that were not accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional

from orchestrator.models.layers import Layer
from orchestrator.runtime.layers.attention.scores import attention_by_scores
from orchestrator.runtime.processes.process_groups import get_tensor_model_parallel_rank

_ALIGNMENT = 64
"""Columns come in multiples of this: masks whose rows are aligned need no copy for the fused kernels."""

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [b, 1, s, r] of the first r channels of each head, the first half of the sines negative; of two
kinds of layers one behind the other, [2, b, 1, s, r]."""


class Cache:
    """Keys and values of this stage's layers, `[b, groups, columns, d]` each, or the states of those that have some,
    `[b, ...]`, and what the pass under way needs.
    """

    def __init__(self, columns: int) -> None:
        self.columns = -(-columns // _ALIGNMENT) * _ALIGNMENT
        self.allocations = 0
        """Grows whenever keys and values come to lie elsewhere in memory."""
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self._states: dict[tuple[int, str], torch.Tensor] = {}
        self._of_each: dict[tuple[int, str], list[torch.Tensor]] = {}
        """States behind each of several tokens of the last pass."""
        self.positions: torch.Tensor | None = None
        """[b, s] of the s tokens of each row in a pass that goes on; None in the first, over the prompts."""
        self.lengths: torch.Tensor | None = None
        """[b] of the prompts, in a pass over these."""
        self._rows: torch.Tensor | None = None
        self.rotation: Rotation | None = None
        self.first_masks: torch.Tensor | None = None
        """Of the tokens of images in prompts, `image_masks`; None where each token attends to those before it alone."""
        self._masks: dict[tuple[int | None, int | None, bool], torch.Tensor] = {}

    def begin(
        self,
        positions: torch.Tensor | None,
        rotation: Rotation | None,
        lengths: torch.Tensor | None = None,
        first_masks: torch.Tensor | None = None,
    ) -> None:
        """Before a pass through the layers: over prompts of these lengths, or over tokens at these positions."""
        self.positions, self.rotation, self.lengths, self.first_masks = positions, rotation, lengths, first_masks
        self._rows = None if positions is None else torch.arange(positions.size(0), device=positions.device)[:, None]
        self._masks.clear()
        self._of_each.clear()

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep [b, groups, s, d] and return all of them, [b, groups, columns, d]."""
        if layer not in self.keys or self.keys[layer].size(0) != key.size(0):
            # Zeros: what is never written has no weight in a sum, and must still be a number.
            for kept, new in ((self.keys, key), (self.values, value)):
                kept[layer] = new.new_zeros(*new.shape[:2], self.columns, new.size(3))
            self.allocations += 1
        keys, values = self.keys[layer], self.values[layer]
        if self.positions is None:
            keys[:, :, : key.size(2)], values[:, :, : value.size(2)] = key, value
        else:
            places = (self._rows, slice(None), self.positions)
            keys[places], values[places] = key.transpose(1, 2), value.transpose(1, 2)
        return keys, values

    def state(self, layer: int, name: str) -> torch.Tensor:
        """A state of a layer, [b, ...]."""
        return self._states[layer, name]

    def keep(self, layer: int, name: str, state: torch.Tensor) -> None:
        """Let it be this from now on."""
        kept = self._states.get((layer, name))
        if kept is not None and kept.shape == state.shape:
            kept.copy_(state)  # a captured graph knows the memory
        else:
            self._states[layer, name] = state.clone()
            self.allocations += 1

    def keep_of_each(self, layer: int, name: str, states: Sequence[torch.Tensor]) -> None:
        """Let it be the last of these, each the state behind one token more; or what `accept` chooses."""
        self.keep(layer, name, states[-1])
        if len(states) > 1:
            self._of_each[layer, name] = list(states)

    def accept(self, accepted: torch.Tensor) -> None:
        """Let each row go on behind the first token of the last pass and so many, [b], of those behind it. Keys and
        values of the others are written over; states have read them already.
        """
        for (layer, name), states in self._of_each.items():
            rows = torch.arange(accepted.size(0), device=accepted.device)
            self.keep(layer, name, torch.stack(states)[accepted, rows])
        self._of_each.clear()

    def take(self, rows: torch.Tensor) -> None:
        """Let row i go on from what row `rows[i]` has; there may be more rows afterwards."""
        self._of_each.clear()
        every: tuple[dict[Any, torch.Tensor], ...] = (self.keys, self.values, self._states)
        for kept in every:
            for place, tensor in kept.items():
                taken = tensor.index_select(0, rows)
                if taken.size(0) == tensor.size(0):
                    tensor.copy_(taken)  # a captured graph knows the memory
                else:
                    kept[place] = taken
                    self.allocations += 1

    def mask(
        self, window: int | None, slopes: torch.Tensor | None, dtype: torch.dtype, chunk: int | None = None
    ) -> torch.Tensor:
        """What is added to the scores of s queries per row: [b, 1, s, columns]; by head with ALiBi's slopes. `chunk`:
        tokens beyond whose chunks none is seen.

        Made once in a pass for all layers that see the same.
        """
        kind = (window, chunk, slopes is not None)
        if kind not in self._masks:
            assert self.positions is not None, "asked for in passes that go on"
            columns = torch.arange(self.columns, device=self.positions.device)
            distance = self.positions[..., None] - columns
            seen = distance >= 0
            if window is not None:
                seen &= distance < window
            if chunk is not None:
                seen &= columns >= self.positions[..., None] // chunk * chunk
            lowered = torch.zeros(1, 1, 1, 1, dtype=dtype, device=distance.device)
            if slopes is not None:
                lowered = (-slopes[:, None, None] * distance[:, None]).to(dtype)
            self._masks[kind] = lowered.masked_fill(~seen[:, None], -math.inf)
        return self._masks[kind]


class CachedAttention(torch.nn.Module):
    """In place of an `Attention` of `runtime.layers.torch_layers`: the same, with a cache where one is set."""

    def __init__(self, plain: Any, layer: int, cap: float | None, rotation: int | None = 0) -> None:
        """`rotation`: which of the model's rotary frequencies the layer has; None for none."""
        super().__init__()
        self.plain, self.layer, self._cap, self._rotation = plain, layer, cap, rotation
        self.cache: Cache | None = None
        self._slopes: torch.Tensor | None = None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """query: [s, b, heads, d]; key: [s, b, groups, d]; value: [s, b, groups, v], of new tokens; returns
        [s, b, heads * v].

        With a cache they are not rotated yet: what is kept is, once and for all. Where v is 0, the value is what of the
        key is not rotated, kept once.
        """
        cache = self.cache
        if cache is None:
            found: torch.Tensor = self.plain(query, key, value, attention_mask, **options)
            return found
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        if cache.rotation is not None and self._rotation is not None:
            query, key = rotate(query, key, _of_kind(cache.rotation, self._rotation))
        keys, values = cache.write(self.layer, key, value)
        if value.size(-1) == 0:
            rotated = 0 if cache.rotation is None else cache.rotation[0].size(-1)
            value, values = key[..., rotated:], keys[..., rotated:]
        if cache.positions is None:
            query, key, value = (x.permute(2, 0, 1, 3) for x in (query, key, value))
            found = self.plain(query, key, value, cache.first_masks)
            return found
        return self._attend(query, keys, values, self._mask(cache, query))

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """s queries per row, [b, heads, s, d], on all keys; returns [s, b, heads * d].

        Queries of one group become rows of one matrix: so no key is copied for each head.
        """
        batch, heads, length, channels = query.shape
        groups = keys.size(1)
        rows = heads // groups * length
        shared = query.reshape(batch, groups, rows, channels)
        if mask.size(1) > 1:
            mask = mask.view(batch, groups, rows, -1)
        elif length > 1:
            mask = mask.repeat(1, 1, heads // groups, 1)
        sinks = self.plain.softmax_offset
        if self._cap is not None or sinks is not None:
            of_rows = None if sinks is None else sinks.repeat_interleave(length).view(groups, rows, 1)
            out = attention_by_scores(shared, keys, values, mask, self.plain.scale, self._cap, of_rows, 0.0)
        else:
            out = functional.scaled_dot_product_attention(shared, keys, values, attn_mask=mask, scale=self.plain.scale)
        return out.reshape(batch, heads, length, -1).permute(2, 0, 1, 3).reshape(length, batch, -1)

    def _mask(self, cache: Cache, query: torch.Tensor) -> torch.Tensor:
        """What is added to the scores, [b, 1 or heads, s, columns]."""
        return cache.mask(self.plain.window, self._own_slopes(query), query.dtype, self.plain.chunk)

    def _own_slopes(self, query: torch.Tensor) -> torch.Tensor | None:
        """ALiBi's slopes of this rank's heads, [heads]."""
        if self.plain.slopes is not None and self._slopes is None:
            heads = query.size(1)
            first = get_tensor_model_parallel_rank() * heads
            self._slopes = torch.tensor(self.plain.slopes[first : first + heads], device=query.device)
        return self._slopes


def _of_kind(rotation: Rotation, kind: int) -> Rotation:
    cosines, sines = rotation
    return (cosines[kind], sines[kind]) if cosines.dim() == 5 else rotation


def rotate(query: torch.Tensor, key: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary positions (Su et al. 2021) on the first channels of [b, heads, s, d] and [b, groups, s, d].

    The halves of a head are pairs, as Megatron's. In few operations: of a single token all take the same time.
    """
    cosines, sines = rotation
    both = torch.cat((query, key), dim=1)
    turned, kept = both[..., : cosines.size(-1)], both[..., cosines.size(-1) :]
    first, second = turned.chunk(2, dim=-1)
    both = torch.addcmul(turned * cosines, torch.cat((second, first), dim=-1), sines)
    if kept.size(-1):
        both = torch.cat((both, kept), dim=-1)
    return both[:, : query.size(1)], both[:, query.size(1) :]


class CachedBiasedAttention(CachedAttention):
    """The same for a `MaskedAttention` of a T5's decoder, whose rows are all at the same position."""

    def __init__(self, plain: Any, layer: int) -> None:
        super().__init__(plain, layer, cap=None)
        self._bias: torch.Tensor | None = None

    def forget(self) -> None:
        """Before another length: biases are made for all positions at once."""
        self._bias = None

    def _mask(self, cache: Cache, query: torch.Tensor) -> torch.Tensor:
        mask = cache.mask(None, None, query.dtype)
        if self.plain.bias is None:
            return mask
        if self._bias is None:
            self._bias = self.plain.bias(cache.columns, cache.columns).to(query.dtype)
        assert cache.positions is not None, "each pass is over one token"
        return mask + self._bias.index_select(2, cache.positions[0])


class Keeps(Protocol):
    """A module of a layer that keeps something from token to token."""

    cache: Cache | None
    """Set in a pass."""


def keep_keys_and_values(decoder: Any, blocks_of_layers: Sequence[Layer]) -> list[Keeps]:
    """Let every layer of a GPT's decoder keep its keys and values, or its states; once for a decoder.
    `blocks_of_layers`: those of the whole model.
    """
    found: list[Keeps] = []
    for number, layer in enumerate(decoder.layers):
        found += keep_of_layer(layer, blocks_of_layers[layer.layer_number - 1], number)
    return found


def keep_of_layer(layer: Any, blocks: Layer, number: int) -> list[Keeps]:
    """Let a built layer of these blocks keep what later tokens need, under a number in the cache; once for a layer."""
    cached = _with_cache(number, layer.config.rotation_of(layer.layer_number))
    keeping = (block.keep(layer, cached) for block in blocks)
    return [module for module in keeping if module is not None]


def _with_cache(layer: int, rotation: int | None) -> Callable[[Any], CachedAttention]:
    return lambda plain: CachedAttention(plain, layer, plain.cap, rotation)
