"""Initial weights that do not depend on the layout.

Each parameter is drawn whole from a generator seeded by its global name and layer, and its expert if it is one of
several; every rank keeps its slice. So the same spec starts from the same weights at every TP, PP, EP and DP.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from orchestrator.runtime.network.state_space_weights import Draw, state_space_draw

_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
_RESIDUAL_WRITERS = ("linear_proj.weight", "linear_fc2.weight", "out_proj.weight")
"""Of attention, of dense MLPs and of experts, of state space layers."""


@dataclass(frozen=True)
class Stream:
    """A stack of layers around one residual stream."""

    branches: int
    """Of the stream: 2 in a layer of attention and MLP."""
    norm_weight: float
    """What norms begin with: 0 where they multiply by 1 + weight."""


def initialize_weights(
    chunks: Iterable[Any], *, seed: int, std: float, vocab_size: int, stream_of: Callable[[str], Stream]
) -> None:
    """Fill the parameters in place, as `fill_weights` does."""
    for chunk in chunks:
        entries = chunk.sharded_state_dict().values()
        fill_weights(entries, seed=seed, std=std, vocab_size=vocab_size, stream_of=stream_of)


@torch.no_grad()
def fill_weights(
    entries: Iterable[Any], *, seed: int, std: float, vocab_size: int, stream_of: Callable[[str], Stream]
) -> None:
    """Fill the parameters in place: N(0, std²), writers to a residual stream N(0, std²/branches), norms as their
    stream's begin, biases 0; of adapters the first matrix N(0, 1/(3·in)), the second 0, so that they add nothing at
    first; what only state space layers have as Mamba-2 fills it. `entries`: the values of a sharded state dict;
    `stream_of`: the stream of a weight.

    Rows of the vocabulary's padding are 0: how many there are depends on the layout.
    """
    for shard in shards_of(entries):
        if shard.data is None or not torch.is_floating_point(shard.data):
            continue
        if (draw := state_space_draw(shard.key)) is not None:
            shard.data.copy_(_slice_of_whole(shard, seed, draw, vocab_size))
        elif shard.key.endswith("bias") or ".lora.b" in shard.key:
            shard.data.zero_()
        elif "norm" in shard.key:
            shard.data.fill_(stream_of(shard.key).norm_weight)
        elif shard.key.endswith("lora.a"):
            narrow = normal(1 / math.sqrt(3 * shard.global_shape[-1]))
            shard.data.copy_(_slice_of_whole(shard, seed, narrow, vocab_size))
        else:
            writes = shard.key.endswith(_RESIDUAL_WRITERS)
            scale = std / math.sqrt(stream_of(shard.key).branches) if writes else std
            shard.data.copy_(_slice_of_whole(shard, seed, normal(scale), vocab_size))


def normal(std: float) -> Draw:
    """Fills a tensor with N(0, std²)."""
    return lambda whole, generator: whole.normal_(0.0, std, generator=generator)


def shards_of(values: Iterable[Any]) -> Iterator[ShardedTensor]:
    """The sharded tensors among a sharded state dict's values; a factory is opened into those it makes."""
    for value in values:
        if isinstance(value, ShardedTensorFactory):
            built = value.build()
            yield from shards_of(built.values() if isinstance(built, dict) else built)
        elif isinstance(value, ShardedTensor):
            yield value
        elif isinstance(value, dict):  # parts of a weight
            yield from shards_of(value.values())


def _slice_of_whole(shard: ShardedTensor, seed: int, draw: Draw, vocab_size: int) -> torch.Tensor:
    """This rank's part of the parameter, drawn whole: leading axes number the layers, the others are the tensor's."""
    stacked = shard.prepend_axis_num
    position = ",".join(str(offset) for offset in shard.global_offset[:stacked])
    generator = torch.Generator(device=shard.data.device)
    generator.manual_seed(zlib.crc32(f"{shard.key}[{position}]".encode()) * 2654435761 + seed)
    shape = list(shard.global_shape[stacked:])
    padding = shape[0] - vocab_size if shard.key.endswith(_VOCABULARY) else 0
    shape[0] -= padding
    whole = torch.empty(shape, dtype=torch.float32, device=shard.data.device)
    draw(whole, generator)
    if padding:
        whole = torch.cat([whole, whole.new_zeros(padding, *shape[1:])])
    offsets = shard.global_offset[stacked:]
    index = tuple(slice(start, start + size) for start, size in zip(offsets, shard.local_shape, strict=True))
    return whole[index].reshape(shard.data.shape)
