"""Self-attention whose queries and keys are rotated in one kernel, where its projection left them.

Queries, keys and values come out of one projection side by side. Rotated there, they can stay there: Transformer
Engine's attention takes them from one tensor, and returns their gradients in one, where heads and groups are as many.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.attention import SelfAttention
from torch.autograd.function import once_differentiable
from torch.nn import functional

from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.triton_kernels.loading import kernels


class AttentionByLayer(SelfAttention):
    """megatron-core's, whose layers differ in their rotary frequencies and in what else they do to queries and keys."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states: [s, b, h]. `rotary_pos_emb`: [s, 1, 1, r], or one behind the other, [2, s, 1, 1, r]."""
        angles, which = options.get("rotary_pos_emb"), self.config.rotation_of(self.layer_number)
        if which is None:
            options["rotary_pos_emb"] = None
        elif angles is not None and self.config.has_local_rotation:
            options["rotary_pos_emb"] = angles[which]
        found: tuple[torch.Tensor, torch.Tensor | None] = super().forward(hidden_states, attention_mask, **options)
        return found

    def get_query_key_value_tensors(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """Queries [s, b, heads, d], keys and values [s, b, groups, d], and gates where there are some. Before the
        rotation, which changes no norm, and no factor.
        """
        query, key, *others = super().get_query_key_value_tensors(hidden_states, *arguments, **options)
        config, which = self.config, self.config.rotation_of(self.layer_number)
        if which is not None and config.normalizes_rotated:
            epsilon = config.layernorm_epsilon
            query, key = (functional.rms_norm(x, x.shape[-1:], None, epsilon) for x in (query, key))
        elif which == 0 and config.rotated_channels is not None:
            channels, factor = config.rotated_channels
            factors = torch.ones(query.size(-1), device=query.device)
            factors[:channels] = factor
            query = (query * factors).to(query.dtype)
        elif which is None and config.query_temperature is not None:
            query = (query * self._temperature(query)).to(query.dtype)
        return query, key, *others

    def _temperature(self, query: torch.Tensor) -> torch.Tensor:
        """Factors [s, 1, 1, 1] of queries from the first token on; [s, b, 1, 1] of further tokens of each row, where
        keys and values are kept (`inference.generation.cache`).
        """
        scale, interval = self.config.query_temperature
        cache = getattr(self.core_attention, "cache", None)
        if cache is None or cache.positions is None:
            positions = torch.arange(query.size(0), device=query.device)[:, None, None, None]
        else:
            positions = cache.positions.t()[:, :, None, None]
        factors: torch.Tensor = 1.0 + scale * torch.log1p(torch.floor((positions.float() + 1.0) / interval))
        return factors


def rotating_attention(config: LayerConfig) -> type[SelfAttention]:
    """megatron-core's self-attention where it does not rotate itself."""
    return AttentionByLayer if config.changes_queries_by_layer else RotatedAttention


class RotatedAttention(SelfAttention):
    """megatron-core's, of heads that are this rank's own and are not normalised."""

    _frequencies: torch.Tensor | None = None

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states: [s, b, h]. With a cache of keys and values, megatron-core itself rotates."""
        own = options.get("inference_context") is None and options.get("packed_seq_params") is None
        self._frequencies = options.get("rotary_pos_emb") if own else None
        if self._frequencies is not None:
            options["rotary_pos_emb"] = None
        found: tuple[torch.Tensor, torch.Tensor | None] = super().forward(hidden_states, attention_mask, **options)
        return found

    def get_query_key_value_tensors(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """Queries [s, b, heads, d], keys and values [s, b, groups, d], rotated where this class is to."""
        if self._frequencies is None:
            return super().get_query_key_value_tensors(hidden_states, *arguments, **options)
        options["split_qkv"] = False
        projected, _ = super().get_query_key_value_tensors(hidden_states, *arguments, **options)
        joined = projected.unflatten(-1, (-1, self.hidden_size_per_attention_head))
        return rotated(joined, self._frequencies, apart=self._needs_own_tensors(joined))

    def _needs_own_tensors(self, joined: torch.Tensor) -> bool:
        """What is offloaded, or sent around a ring, goes by itself; grouped queries lie unevenly in the projection."""
        return joined.size(-2) > 3 or self.config.context_parallel_size > 1 or self.config.cpu_offloading


def rotated(
    joined: torch.Tensor, frequencies: torch.Tensor, *, apart: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [s, b, heads, d], keys and values [s, b, groups, d] of a projection's output [s, b, groups, heads per
    group + 2, d], rotated by `frequencies` [s, 1, 1, r], or [s, b, 1, r] where sequences differ, in radians: thirds of
    that output, which is gone, or, `apart`, tensors of their own.
    """
    apply: Any = _Rotation.apply
    query, key, value = apply(joined, frequencies, apart)
    return query, key, value


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joined: torch.Tensor, frequencies: torch.Tensor, apart: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(frequencies)
        if apart:
            query, key, value = _kernels().split(joined, frequencies)
            return query, key, value
        _kernels().rotate(joined, frequencies)
        # Another use of the projection's output would now compute with what is rotated: autograd is told.
        torch.autograd.graph.increment_version(joined)
        query, key, value = joined.detach().unbind(-2)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        (frequencies,) = ctx.saved_tensors
        joined = thirds_of_one(query, key, value)
        if joined is None:
            return _kernels().join(query.contiguous(), key.contiguous(), value.contiguous(), frequencies), None, None
        # The attention made it for this, and nobody else has it.
        _kernels().rotate(joined, frequencies, back=True)
        return joined, None, None


def thirds_of_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
    """The contiguous tensor [s, b, heads, 3, d] that all three are parts of, if there is one."""
    s, b, heads, d = query.shape
    whole = (s, b, heads, 3, d)
    strides = (b * heads * 3 * d, heads * 3 * d, 3 * d, 1)
    for place, each in enumerate((query, key, value)):
        same = each.untyped_storage().data_ptr() == query.untyped_storage().data_ptr()
        if not same or each.shape != query.shape or each.stride() != strides:
            return None
        if each.storage_offset() != query.storage_offset() + place * d:
            return None
    return query.as_strided(whole, (*strides[:3], d, 1))


def _kernels() -> Any:
    return kernels("rotation", "the rotation of positions")
