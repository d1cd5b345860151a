"""Latent attention in the layers that train, and with a cache of latents where they generate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from torch.nn import functional

from orchestrator.models.blocks.base import LayerSetup, LayerTools
from orchestrator.models.blocks.latent_attention.parameters import key_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.latent_attention.model_fields import LatentFields


def settings(model: LatentFields, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration, where they are others than with grouped-query attention."""
    scaling = model.rope_scaling
    return {
        "kv_lora_rank": model.kv_lora_rank,
        "q_lora_rank": model.q_lora_rank,
        "qk_head_dim": model.qk_head_dim,
        "qk_pos_emb_head_dim": model.qk_pos_emb_head_dim,
        "v_head_dim": model.v_head_dim,
        # megatron-core takes norms of that name for those of single heads, and sums their gradients over ranks that
        # have equal ones here.
        "qk_layernorm": False,
        "normalizes_latents": model.qk_layernorm,
        # The model's rotary frequencies are for heads so wide: of these the rotated part alone.
        "kv_channels": model.qk_pos_emb_head_dim,
        "softmax_scale": (1.0 if scaling is None else scaling.score_factor) / math.sqrt(key_width(model)),
        # Both queries and keys are multiplied by YaRN's factor.
        "rotated_query_factor": 1.0 if scaling is None else scaling.rotation_factor**2,
    }


def place(layer: Any, config: Any, tools: LayerTools) -> None:
    """Let a layer attend so. `layer`: megatron-core's specification, which has its SelfAttention already."""
    parts = layer.submodules
    parts.input_layernorm = tools.norm
    parts.sharded_state_dict_keys_map = {
        **parts.sharded_state_dict_keys_map,
        "input_layernorm.": "self_attention.linear_kv_down_proj.layer_norm_",
    }
    norm = tools.norm if config.normalizes_latents else None
    parts.self_attention = ModuleSpec(
        module=LatentAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=Submodules(tools.column, tools.row, tools.core, norm),
    )


def keep(layer: Any, with_cache: Callable[[Any], Any]) -> Any:
    """Let a built layer keep the latents of tokens."""
    attention: LatentAttention = layer.self_attention
    attention.cached = with_cache(attention.core_attention)
    return attention.cached


class Submodules(NamedTuple):
    """What latent attention is built of."""

    column: Any
    row: Any
    core: Any
    norm: Any | None
    """Of the latents; None where they are not normalised."""


class LatentLinear(torch.nn.Module):
    """The matrix to a latent, without a bias. Every tensor-parallel rank has it whole, for its own tokens. It is called
    as megatron-core's linear layers are.
    """

    is_expert = False

    def __init__(self, inputs: int, outputs: int, config: Any, tp_group: dist.ProcessGroup) -> None:
        super().__init__()
        self.tp_group = tp_group
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype))
        # Under sequence parallelism each rank's gradient is that of its part of the sequence.
        marked: Any = self.weight
        marked.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """[s, b, outputs] from [s, b, inputs], and no bias."""
        return functional.linear(hidden, self.weight), None


class LatentAttention(MegatronModule):
    """Self-attention whose keys and values come from a latent, and queries from another one or from the stream.

    megatron-core's MLASelfAttention (0.16 to 0.19) has the same weights. Without sequence parallelism each of its
    tensor-parallel ranks keeps the gradient that its own heads give the key's rotated part, which all heads share.
    """

    def __init__(
        self,
        config: Any,
        submodules: Submodules,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **unused: Any,
    ) -> None:
        super().__init__(config=config)
        self.layer_number, self.group = layer_number, pg_collection.tp
        self.heads = config.num_attention_heads // self.group.size()
        self.no_pe, self.pe, self.value_width = config.qk_head_dim, config.qk_pos_emb_head_dim, config.v_head_dim
        self.rank: int = config.kv_lora_rank
        query = config.num_attention_heads * (self.no_pe + self.pe)

        def column(inputs: int, outputs: int, name: str) -> Any:
            return build_module(
                submodules.column,
                inputs,
                outputs,
                config=config,
                init_method=config.init_method,
                gather_output=False,
                bias=False,
                skip_bias_add=False,
                is_expert=False,
                tp_comm_buffer_name=name,
                tp_group=self.group,
            )

        def norm(width: int) -> Any:
            if submodules.norm is None:
                return torch.nn.Identity()
            return build_module(submodules.norm, config=config, hidden_size=width, eps=config.layernorm_epsilon)

        self.has_query_latent = config.q_lora_rank is not None
        if self.has_query_latent:
            self.linear_q_down_proj = LatentLinear(config.hidden_size, config.q_lora_rank, config, self.group)
            self.q_layernorm = norm(config.q_lora_rank)
            self.linear_q_up_proj = column(config.q_lora_rank, query, "q_up_proj")
        else:
            self.linear_q_proj = column(config.hidden_size, query, "q_proj")
        self.linear_kv_down_proj = LatentLinear(config.hidden_size, self.rank + self.pe, config, self.group)
        self.kv_layernorm = norm(self.rank)
        key_value = config.num_attention_heads * (self.no_pe + self.value_width)
        self.linear_kv_up_proj = column(self.rank, key_value, "kv_up_proj")
        self.core_attention = build_module(
            submodules.core,
            config=config,
            layer_number=layer_number,
            attn_mask_type=attn_mask_type,
            attention_type="self",
            softmax_scale=config.softmax_scale,
            k_channels=self.no_pe + self.pe,
            v_channels=self.value_width,
            cp_comm_type=cp_comm_type,
            pg_collection=pg_collection,
        )
        self.linear_proj = build_module(
            submodules.row,
            config.num_attention_heads * self.value_width,
            config.hidden_size,
            config=config,
            init_method=config.output_layer_init_method,
            bias=config.add_bias_linear,
            input_is_parallel=True,
            skip_bias_add=True,
            is_expert=False,
            tp_comm_buffer_name="proj",
            tp_group=self.group,
        )
        recomputes = config.recompute_granularity == "selective" and "core_attn" in config.recompute_modules
        self.recomputes_core = recomputes
        self.cached: Any = None
        """The core of attention that keeps latents; None where nothing is generated."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        rotary_pos_emb: Any = None,
        **unused: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states: [s, b, h], under sequence parallelism this rank's part. `rotary_pos_emb`: angles
        [s, 1, 1, r], of which megatron-core hands over two alike, for queries and for keys.
        """
        query = self._queries(hidden_states)
        latent, key_pe = self._latents(hidden_states)
        if self.cached is not None and self.cached.cache is not None:
            out = self._absorbed(query, latent, key_pe)
        else:
            angles = rotary_pos_emb[0] if isinstance(rotary_pos_emb, tuple) else rotary_pos_emb
            out = self._attend(self._expanded(query, latent, key_pe, angles), attention_mask)
        found: tuple[torch.Tensor, torch.Tensor | None] = self.linear_proj(out)
        return found

    def _queries(self, hidden: torch.Tensor) -> torch.Tensor:
        """[s, b, heads of this rank, no_pe + pe], not rotated."""
        if self.has_query_latent:
            narrow, _ = self.linear_q_down_proj(hidden)
            query, _ = self.linear_q_up_proj(self.q_layernorm(narrow))
        else:
            query, _ = self.linear_q_proj(hidden)
        found: torch.Tensor = query.unflatten(-1, (self.heads, self.no_pe + self.pe))
        return found

    def _latents(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The latent of keys and values [s, b, rank], under sequence parallelism of this rank's tokens, and the key's
        part that is to be rotated [s, b, pe], of all tokens.
        """
        both, _ = self.linear_kv_down_proj(hidden)
        latent, key_pe = torch.split(both, [self.rank, self.pe], dim=-1)
        # Each rank's heads give a part of its gradient.
        if self.config.sequence_parallel:
            key_pe = gather_from_sequence_parallel_region(key_pe, group=self.group)
        else:
            key_pe = _summed_gradient(key_pe, self.group)
        return self.kv_layernorm(latent), key_pe

    def _expanded(
        self, query: torch.Tensor, latent: torch.Tensor, key_pe: torch.Tensor, angles: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys [s, b, heads, no_pe + pe], and values [s, b, heads, v]."""
        key_value, _ = self.linear_kv_up_proj(latent)
        key, value = torch.split(key_value.unflatten(-1, (self.heads, -1)), [self.no_pe, self.value_width], dim=-1)
        query, query_pe = torch.split(query, [self.no_pe, self.pe], dim=-1)
        turned = _rotated(halves(torch.cat((query_pe, key_pe[:, :, None]), dim=2)), angles)
        query_pe, key_pe = torch.split(turned, [self.heads, 1], dim=2)
        if self.config.rotated_query_factor != 1.0:
            query_pe = query_pe * self.config.rotated_query_factor
        query = torch.cat((query, query_pe), dim=-1)
        key = torch.cat((key, key_pe.expand(-1, -1, self.heads, -1)), dim=-1)
        return query, key, value.contiguous()

    def _attend(
        self, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], mask: torch.Tensor | None
    ) -> torch.Tensor:
        """[s, b, heads * v]."""

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.core_attention(query, key, value, mask, attn_mask_type=AttnMaskType.causal)
            return found

        if self.recomputes_core and self.training:
            again: torch.Tensor = tensor_parallel.checkpoint(attend, False, *inputs)
            return again
        return attend(*inputs)

    def _absorbed(self, query: torch.Tensor, latent: torch.Tensor, key_pe: torch.Tensor) -> torch.Tensor:
        """[s, b, heads * v] by a core with a cache, whose keys and values are the latents: queries are multiplied by
        the matrix of keys instead, and what comes of the latents by that of values ("DeepSeek-V2", section 2.1.2).
        """
        weight = self.linear_kv_up_proj.weight.unflatten(0, (self.heads, -1))
        of_keys, of_values = torch.split(weight, [self.no_pe, self.value_width], dim=1)
        query, query_pe = torch.split(query, [self.no_pe, self.pe], dim=-1)
        query = torch.einsum("sbhn,hnr->sbhr", query, of_keys)
        # The cached core rotates what comes first.
        query = torch.cat((halves(query_pe) * self.config.rotated_query_factor, query), dim=-1)
        key = torch.cat((halves(key_pe), latent), dim=-1)[:, :, None]
        # What of a key is not rotated is its value: the cached core keeps it once.
        out = self.cached(query, key, key[..., :0]).unflatten(-1, (self.heads, self.rank))
        return torch.einsum("sbhr,hvr->sbhv", out, of_values).flatten(2)


def halves(channels: torch.Tensor) -> torch.Tensor:
    """Pairs of channels that are rotated together lie side by side in DeepSeek's weights, and half their number apart
    in what is rotated here. Queries and keys are reordered alike, so their products stay.
    """
    return channels.view(*channels.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)


class _SummedGradient(torch.autograd.Function):
    """megatron-core's `copy_to_tensor_model_parallel_region` loses the sum of a gradient that is not contiguous."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


def _summed_gradient(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The tensor, whose gradient is summed over the ranks."""
    if group.size() == 1:
        return tensor
    apply: Any = _SummedGradient.apply
    found: torch.Tensor = apply(tensor, group)
    return found


def _rotated(channels: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al. 2021) on [s, b, heads, r], by angles [s, 1, 1, r] in radians."""
    first, second = channels.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return channels * angles.cos().to(channels.dtype) + turned * angles.sin().to(channels.dtype)
