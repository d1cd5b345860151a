"""The layers of a hybrid: state space layers, and the attention, the MLP and the experts of a transformer layer by
themselves.

Imports mamba-ssm where it is installed: import it for hybrids only.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules, _split_tensor_factory
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.identity_op import IdentityFuncOp, IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from orchestrator.models.blocks.block import Branch
from orchestrator.models.blocks.gated_delta_net.layers import segments_of
from orchestrator.models.blocks.registry import STATE_SPACE
from orchestrator.models.blocks.state_space.layers import go_on
from orchestrator.models.blocks.state_space.weights import PROJECTED
from orchestrator.models.layers import Layer
from orchestrator.runtime.layers.layer_backend import block_spec_function
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.spec.sections.runtime import Layers


class StateSpaceMixer(MambaMixer):
    """megatron-core's, which goes on from what it keeps in a cache where one is set. It is told of which text of a
    sequence each token is, [b, s], in place of where texts begin in one long sequence.
    """

    cache: Any = None
    number = 0
    """Under which it keeps that."""

    def forward(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """[s, b, h] to the same, and no bias."""
        if self.cache is None:
            return super().forward(hidden_states, *arguments, **options)
        projected, _ = self.in_proj(hidden_states)
        return self.out_proj(go_on(self, projected, self.cache, self.number))

    def _create_packed_seq_idx(self, packed_seq_params: torch.Tensor, total_tokens: int) -> torch.Tensor:
        return packed_seq_params.to(torch.int32)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> dict[str, Any]:
        """This rank's parts of the weights, for a checkpoint. Rows of the first matrix are stored by what they give,
        and so are those of an adapter beside it.
        """
        found: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        rows = f"{prefix}in_proj.lora.b"
        if rows in found:
            states = self.ngroups_local_tp * self.d_state
            sizes = [self.d_inner_local_tp] * 2 + [states] * 2 + [self.nheads_local_tp]
            found[rows] = _split_tensor_factory(found[rows], sizes, [*PROJECTED], 0)
        return found


class StateSpaceLayer(MambaLayer):
    """megatron-core's, in a transformer's block: numbered as its layers are, called with what they take."""

    def __init__(
        self,
        config: TransformerConfig,
        submodules: MambaLayerSubmodules,
        layer_number: int = 1,
        pg_collection: Any = None,
        vp_stage: int | None = None,
        **unused: Any,
    ) -> None:
        first: int = get_transformer_layer_offset(config, vp_stage)
        super().__init__(config, submodules, layer_number + first, pg_collection=pg_collection)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **unused: Any
    ) -> tuple[torch.Tensor, None]:
        """[s, b, h] to the same, and no context for a layer behind it. attention_mask: what is added to the scores of
        attentions, [b, 1, s, s], where several texts are packed into a sequence: convolution and state end with each.
        """
        texts = None if attention_mask is None else segments_of(attention_mask)
        return super().forward(hidden_states, packed_seq_params=texts), None


class InputNorm(Norm):
    """A norm that finds its epsilon in the configuration: not every version of megatron-core hands it over here."""

    def __init__(self, config: TransformerConfig, hidden_size: int, **unused: Any) -> None:
        super().__init__(config, hidden_size, config.layernorm_epsilon)


def block_spec(
    config: TransformerConfig, vp_stage: int | None, every: Sequence[Layer], layers: Layers
) -> TransformerBlockSubmodules:
    """The layers of one model chunk of this rank's stage. `every`: those of the whole model."""
    whole = block_spec_function(layers)(config, vp_stage)
    first, count = get_transformer_layer_offset(config, vp_stage), get_num_layers_to_build(config, vp_stage=vp_stage)
    blocks = [block for layer in every[first : first + count] for block in layer]
    made: dict[Branch, Any] = {STATE_SPACE: _state_space(layers)}
    for block, layer in zip(blocks, whole.layer_specs, strict=True):
        if block not in made:
            made[block] = _without(layer, _OTHER_BRANCH[block.prefix])
    return TransformerBlockSubmodules(layer_specs=[made[block] for block in blocks], layer_norm=whole.layer_norm)


_OTHER_BRANCH = {
    "mlp.": {"input_layernorm": IdentityOp, "self_attention": IdentityOp, "self_attn_bda": IdentityFuncOp},
    "self_attention.": {"pre_mlp_layernorm": IdentityOp, "mlp": IdentityOp, "mlp_bda": IdentityFuncOp},
}
"""By how names of a branch's weights begin: nothing in place of the other one."""


def _without(layer: Any, parts: dict[str, Any]) -> Any:
    """A transformer layer without its attention, or without its MLP."""
    alone = copy.deepcopy(layer)
    vars(alone.submodules).update(parts)
    return alone


def _state_space(layers: Layers) -> ModuleSpec:
    if layers == "torch":
        first: Any = ColumnParallelLinear
        second: Any = RowParallelLinear
        norm: Any = InputNorm
        # As with Transformer Engine, whose first matrix has the norm inside.
        names = {"norm.": "mixer.in_proj.layer_norm_"}
    else:
        engine = importlib.import_module("megatron.core.extensions.transformer_engine")
        first, second, norm = engine.TELayerNormColumnParallelLinear, engine.TERowParallelLinear, IdentityOp
        names = {}
    mixer = ModuleSpec(module=StateSpaceMixer, submodules=MambaMixerSubmodules(in_proj=first, out_proj=second))
    return ModuleSpec(
        module=StateSpaceLayer,
        submodules=MambaLayerSubmodules(
            norm=norm, mixer=mixer, mamba_bda=get_bias_dropout_add, sharded_state_dict_keys_map=names
        ),
    )
