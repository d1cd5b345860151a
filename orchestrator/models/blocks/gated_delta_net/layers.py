"""A gated delta net in the layers that train, and with a cache of states where they generate."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from megatron.core.tensor_parallel import all_to_all, copy_to_tensor_model_parallel_region
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint, sharded_state_dict_default
from torch.autograd.function import once_differentiable
from torch.nn import functional

from orchestrator.models.blocks.base import LayerSetup, LayerTools
from orchestrator.models.blocks.gated_delta_net.delta_rule import Inputs, chunked_delta_rule
from orchestrator.models.blocks.gated_delta_net.libraries import fla_trouble
from orchestrator.models.blocks.gated_delta_net.parameters import CHUNK, convolved_width, projected_width, value_width

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields

_EPSILON = 1e-6
"""Of the lengths of queries and keys."""


def settings(model: DeltaFields, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration."""
    if not model.has_linear_attention:
        return {}
    return {
        "linear_num_key_heads": model.linear_num_key_heads,
        "linear_num_value_heads": model.linear_num_value_heads,
        "linear_key_head_dim": model.linear_key_head_dim,
        "linear_value_head_dim": model.linear_value_head_dim,
        "linear_conv_kernel_dim": model.linear_conv_kernel_dim,
    }


def place(layer: Any, config: Any, tools: LayerTools) -> None:
    """Let a layer have it in place of attention. `layer`: megatron-core's specification, which has its SelfAttention
    already.
    """
    parts = layer.submodules
    parts.input_layernorm = tools.norm
    parts.sharded_state_dict_keys_map = {
        **parts.sharded_state_dict_keys_map,
        "input_layernorm.": "self_attention.in_proj.layer_norm_",
    }
    parts.self_attention = ModuleSpec(GatedDeltaNet, submodules=Submodules(tools.column, tools.row))


def keep(layer: Any, with_cache: Callable[[Any], Any]) -> Any:
    """Let a built layer keep its states."""
    return layer.self_attention


class Submodules(NamedTuple):
    """What a gated delta net is built of."""

    column: Any
    row: Any


class HeadWeights(NamedTuple):
    """What a gated delta net has beside its matrices, of this rank's heads."""

    convolution: torch.Tensor
    """[channels, 1, tokens]"""
    log_decay: torch.Tensor
    """[value heads]"""
    step_bias: torch.Tensor
    """[value heads]"""
    norm: torch.Tensor
    """[width of a value]"""


class Weight(torch.nn.Module):
    """A weight of a name of its own, whose rows tensor-parallel ranks share out, or which each has whole."""

    def __init__(self, *shape: int, config: Any, is_split: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
        self.is_split = is_split
        if is_split:
            set_tensor_model_parallel_attributes(self.weight, True, 0, 1)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None, **unused: Any
    ) -> dict[str, Any]:
        """Its part of the weight, for a checkpoint."""
        rows, state = ({"weight": 0} if self.is_split else {}), {"weight": self.weight}
        found: dict[str, Any] = make_sharded_tensors_for_checkpoint(state, prefix, rows, sharded_offsets)
        return found


class GatedDeltaNet(MegatronModule):
    """Linear attention: each value head has a state [k, v], which for each token decays, forgets in part what it gives
    for the token's key, learns its value instead, and is asked with its query (Yang et al. 2024, arXiv:2412.06464).

    Its weights have the names of megatron-core's GatedDeltaNet (0.16), which computes with fla's kernels alone; rows of
    the fused ones are in another order (`weights.py`).
    """

    def __init__(
        self, config: Any, submodules: Submodules, layer_number: int, pg_collection: Any = None, **unused: Any
    ) -> None:
        super().__init__(config=config)
        self.layer_number, self.group, self.sequence_group = layer_number, pg_collection.tp, pg_collection.cp
        ranks = self.group.size()
        self.sizes = HeadSizes(
            config.linear_num_value_heads // config.linear_num_key_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        heads, values = config.linear_num_value_heads // ranks, value_width(config)

        def linear(module: Any, inputs: int, outputs: int, name: str, **options: Any) -> Any:
            more = {"is_expert": False, "tp_comm_buffer_name": name, "tp_group": self.group}
            return build_module(module, inputs, outputs, config=config, bias=False, **more, **options)

        self.in_proj = linear(
            submodules.column,
            config.hidden_size,
            projected_width(config),
            "fc1",
            init_method=config.init_method,
            gather_output=False,
            skip_bias_add=False,
        )
        self.conv1d = Weight(
            convolved_width(config) // ranks, 1, config.linear_conv_kernel_dim, config=config, is_split=True
        )
        self.A_log, self.dt_bias = (torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype)) for _ in range(2))
        for parameter in (self.A_log, self.dt_bias):
            set_tensor_model_parallel_attributes(parameter, True, 0, 1)
        self.out_norm = Weight(config.linear_value_head_dim, config=config, is_split=False)
        self.out_proj = linear(
            submodules.row,
            values,
            config.hidden_size,
            "fc2",
            init_method=config.output_layer_init_method,
            input_is_parallel=True,
            skip_bias_add=True,
        )
        self.cache: Any = None
        """Of states; None where nothing is generated."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **unused: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states: [s, b, h], under sequence parallelism this rank's part. attention_mask: what is added to the
        scores of attentions, [b, 1, s, s], where several texts are packed into a sequence: states end with each.
        """
        projected, _ = self.in_proj(hidden_states)
        norm, sharing = self.out_norm.weight, self.sequence_group
        if self.group.size() > 1:  # each rank's heads give a part of its gradient
            norm = copy_to_tensor_model_parallel_region(norm, group=self.group)
        of_heads = [self.conv1d.weight, self.A_log, self.dt_bias]
        if sharing.size() > 1:  # all tokens of some of this rank's heads
            projected = to_own_heads(projected, sharing)
            of_heads = [each.chunk(sharing.size())[sharing.rank()] for each in of_heads]
        weights = HeadWeights(of_heads[0], of_heads[1], of_heads[2], norm)
        if self.cache is not None:
            out = self._cached(projected, weights)
        else:
            apply: Any = _Recomputed.apply
            segments = None if attention_mask is None else segments_of(attention_mask)
            out = apply(partial(self._mixed, segments), projected, *weights)
        out = to_own_tokens(out, sharing) if sharing.size() > 1 else out
        found: tuple[torch.Tensor, torch.Tensor | None] = self.out_proj(out)
        return found

    def _mixed(self, segments: torch.Tensor | None, projected: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """[s, b, heads * v] from what the first matrix gives. segments: [b, s], which text each token is of."""
        of_heads = HeadWeights(*weights)
        channels, gate, beta, alpha = self._split(projected)
        padded = functional.pad(channels, (of_heads.convolution.size(-1) - 1, 0))
        if segments is None:
            convolved = _convolved(padded, of_heads.convolution)
        else:
            convolved = _convolved_apart(padded, of_heads.convolution, segments)
        inputs = self._inputs(convolved, beta, alpha, of_heads)
        out, _ = delta_rule(inputs, None, segments)
        return self._gated(out, gate, of_heads.norm)

    def _split(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of [s, b, p]: what is convolved [b, channels, s]; the gates [s, b, value heads, v]; and how much is written
        and kept, [b, s, value heads].
        """
        sizes = self.sizes
        widths = [sizes.convolved, sizes.shared * sizes.value, sizes.shared, sizes.shared]
        channels, gate, beta, alpha = torch.split(torch.unflatten(projected, -1, (-1, sum(widths))), widths, -1)
        gate = gate.reshape(*projected.shape[:2], -1, sizes.value)
        beta, alpha = (each.flatten(2).transpose(0, 1) for each in (beta, alpha))
        return channels.flatten(2).permute(1, 2, 0), gate, beta, alpha

    def _inputs(self, convolved: torch.Tensor, beta: torch.Tensor, alpha: torch.Tensor, weights: HeadWeights) -> Inputs:
        """From convolved [b, channels, s]. Value heads that share a key head follow each other."""
        sizes = self.sizes
        grouped = torch.unflatten(convolved.transpose(1, 2), -1, (-1, sizes.convolved))
        query, key, value = torch.split(grouped, [sizes.key, sizes.key, sizes.shared * sizes.value], dim=-1)
        query, key = (_of_length_one(each.float()).repeat_interleave(sizes.shared, dim=2) for each in (query, key))
        value = value.reshape(*value.shape[:2], -1, sizes.value).float()
        steps = functional.softplus(alpha.float() + weights.step_bias.float())
        return Inputs(query, key, value, -weights.log_decay.float().exp() * steps, beta.float().sigmoid())

    def _gated(self, out: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[s, b, heads * v]: what the heads [b, s, heads, v] give, normalised and gated [s, b, heads, v]."""
        normed = functional.rms_norm(out.transpose(0, 1), (self.sizes.value,), None, self.config.layernorm_epsilon)
        gated = normed.to(gate.dtype) * weight * functional.silu(gate.float())
        return gated.to(gate.dtype).flatten(2)

    def _cached(self, projected: torch.Tensor, weights: HeadWeights) -> torch.Tensor:
        """The same of prompts, or of more tokens for each row, from the states that are kept."""
        cache, number = self.cache, self.layer_number
        channels, gate, beta, alpha = self._split(projected)
        before = weights.convolution.size(-1) - 1
        if cache.positions is None:
            padded = functional.pad(channels, (before, 0))
            # Of rows that are filled up, the last of their own tokens.
            places = cache.lengths[:, None] + torch.arange(before, device=padded.device)
            last = padded.gather(2, places[:, None].expand(-1, padded.size(1), -1))
            inputs = self._inputs(_convolved(padded, weights.convolution), beta, alpha, weights)
            own = torch.arange(channels.size(2), device=padded.device) < cache.lengths[:, None]
            inputs = inputs._replace(decay=inputs.decay * own[..., None], beta=inputs.beta * own[..., None])
            out, state = delta_rule(inputs, None)
            cache.keep(number, "convolved", last)
            cache.keep(number, "recurrent", state)
        else:
            padded = torch.cat((cache.state(number, "convolved"), channels), dim=2)
            ends = range(1, channels.size(2) + 1)
            cache.keep_of_each(number, "convolved", [padded[..., end : end + before] for end in ends])
            inputs = self._inputs(_convolved(padded, weights.convolution), beta, alpha, weights)
            out, states = _token_by_token(inputs, cache.state(number, "recurrent"))
            cache.keep_of_each(number, "recurrent", states)
        return self._gated(out, gate, weights.norm)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None, **unused: Any
    ) -> dict[str, Any]:
        """This rank's parts of the weights, for a checkpoint."""
        own = {"A_log": self.A_log, "dt_bias": self.dt_bias}
        rows = dict.fromkeys(own, 0)
        found: dict[str, Any] = make_sharded_tensors_for_checkpoint(own, prefix, rows, sharded_offsets)
        for name, module in self.named_children():
            found |= sharded_state_dict_default(module, f"{prefix}{name}.", sharded_offsets, metadata)
        return found


class HeadSizes(NamedTuple):
    """Of each key head."""

    shared: int
    """Value heads that it serves."""
    key: int
    """Width of a key, and of a query."""
    value: int

    @property
    def convolved(self) -> int:
        """Channels that are convolved."""
        return 2 * self.key + self.shared * self.value


class _Recomputed(torch.autograd.Function):
    """A function that keeps its inputs alone, and is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        with _short_products(inputs[0]):
            return function(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        inputs = [x.detach().requires_grad_(needs) for x, needs in zip(ctx.saved_tensors, needed, strict=True)]
        with _short_products(inputs[0]):
            with torch.enable_grad():
                out = ctx.function(*inputs)
            gradients = iter(torch.autograd.grad(out, [x for x in inputs if x.requires_grad], gradient))
        return None, *(next(gradients) if needs else None for needs in needed)


@contextlib.contextmanager
def _short_products(activations: torch.Tensor) -> Iterator[None]:
    """Let a GPU multiply fp32 in TF32 where the model is in 16 bits, whose products fla's kernels take."""
    before = torch.get_float32_matmul_precision()
    if activations.is_cuda and activations.dtype != torch.float32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _convolved(padded: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each channel of [b, channels, s + n - 1] with its own n weights: [b, channels, s]."""
    return functional.silu(functional.conv1d(padded, weight, groups=padded.size(1)))


def to_own_heads(shared: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """[s, b, w / CP] from [s / CP, b, w]: all tokens of this rank's share of the heads, in the order of the sequence,
    from its own tokens of all heads (the all-to-all of megatron-core's MambaContextParallel). A rank's tokens are a
    chunk from the first half of the sequence, and its counterpart from the second (`runtime/processes`).
    """
    size = group.size()
    received: torch.Tensor = all_to_all(group, torch.unflatten(shared, -1, (size, -1)).movedim(2, 0).flatten(0, 1))
    first, second = torch.unflatten(received, 0, (size, 2, -1)).unbind(dim=1)
    return torch.cat((first, second.flip(0))).flatten(0, 1)


def to_own_tokens(shared: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """The way back: [s / CP, b, w] from [s, b, w / CP]."""
    size = group.size()
    first, second = torch.unflatten(shared, 0, (2, size, -1)).unbind(dim=0)
    received: torch.Tensor = all_to_all(group, torch.stack((first, second.flip(0)), dim=1).flatten(0, 2))
    return torch.unflatten(received, 0, (size, -1)).movedim(0, 2).flatten(2)


def segments_of(mask: torch.Tensor) -> torch.Tensor:
    """Which text of its sequence each token is of, [b, s], from what is added to scores [b, 1, s, s]: a text's first
    token does not attend to the token before it.
    """
    begins = functional.pad(mask[:, 0].diagonal(-1, dim1=-2, dim2=-1) != 0, (1, 0))
    return begins.cumsum(dim=-1)


def _convolved_apart(padded: torch.Tensor, weight: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """The same of sequences of several texts, each of which begins with nothing before it. segments: [b, s]."""
    length, width = segments.size(1), weight.size(-1)
    known = functional.pad(segments, (width - 1, 0), value=-1).unfold(1, length, 1) == segments[:, None]
    taps = padded.unfold(2, length, 1) * known[:, None]
    # One product with all that a token looks at: as exact as the convolution in any precision.
    found = functional.conv1d(taps.flatten(1, 2), weight.transpose(1, 2), groups=padded.size(1))
    return functional.silu(found)


def _of_length_one(vectors: torch.Tensor) -> torch.Tensor:
    return vectors * torch.rsqrt(vectors.square().sum(dim=-1, keepdim=True) + _EPSILON)


def delta_rule(
    inputs: Inputs, state: torch.Tensor | None, segments: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the states give for each token [b, s, heads, v], and the last ones, [b, heads, k, v], both in fp32.
    segments: [b, s], of sequences of several texts, each of which begins with an empty state.
    """
    kernels = fla_kernels(inputs.query.device) if inputs.query.is_cuda else None
    if kernels is None:
        return chunked_delta_rule(inputs, state, CHUNK, segments)
    borders = {}
    if segments is not None:  # to these kernels all texts are parts of one sequence
        assert state is None, "texts are packed in training only"
        inputs, borders = Inputs(*(each.flatten(0, 1)[None] for each in inputs)), {"cu_seqlens": text_borders(segments)}
    query, key, value, decay, beta = (each.contiguous() for each in inputs)
    out, last = kernels.chunk_gated_delta_rule(
        query, key, value, g=decay, beta=beta, initial_state=state, output_final_state=True, **borders
    )
    return (out if segments is None else out.view(*segments.shape, *out.shape[2:])), last


def text_borders(segments: torch.Tensor) -> torch.Tensor:
    """Where each text begins in all sequences together, and where the last one ends: [texts + 1]."""
    begins = functional.pad(segments.diff(dim=1) != 0, (1, 0), value=True).flatten()
    return torch.cat((begins.nonzero().squeeze(1), begins.new_full((1,), begins.numel(), dtype=torch.int64)))


@cache
def fla_kernels(device: torch.device) -> Any:
    """fla's kernels of the delta rule; None where they cannot be had."""
    if fla_trouble(torch.cuda.get_device_capability(device)) is not None:
        return None
    return importlib.import_module("fla.ops.gated_delta_rule")


def _token_by_token(inputs: Inputs, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The same of few tokens, from a state, with the states behind each of them."""
    given, states = [], []
    for query, key, value, decay, beta in zip(*(each.unbind(dim=1) for each in inputs), strict=True):
        state = state * decay.exp()[..., None, None]
        change = (value - (state * key[..., None]).sum(dim=-2)) * beta[..., None]
        state = state + key[..., None] * change[..., None, :]
        given.append((state * (query / math.sqrt(query.size(-1)))[..., None]).sum(dim=-2))
        states.append(state)
    return torch.stack(given, dim=1), states
