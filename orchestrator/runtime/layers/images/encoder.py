"""Images as embeddings of a decoder: CLIP's vision transformer, and two matrices behind it (Liu et al. 2023, LLaVA).

Tensor parallelism splits attention, MLPs and the two matrices, as it does a decoder's; what stands between them is
whole on every rank: there is no sequence parallelism here.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlock, TransformerBlockSubmodules
from torch.nn import functional

from orchestrator.kernel_selection.fused_kernels import filling
from orchestrator.models.blocks.mlp.layers import quick_gelu
from orchestrator.runtime.layers.attention.masked import MaskedAttention
from orchestrator.runtime.layers.config import LayerConfig, defaults_beyond_megatron
from orchestrator.runtime.layers.gelu import gelu
from orchestrator.runtime.layers.images.aligned_linear import AlignedRowParallelLinear
from orchestrator.runtime.layers.images.patches import cut, scaled
from orchestrator.runtime.layers.layer_backend import block_spec_function
from orchestrator.runtime.layers.normalization.branches import submodules_of
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.spec.sections.runtime import Layers
from orchestrator.spec.vision import VisionSpec


class ImageEncoder(MegatronModule):
    """From images to the embeddings that stand for their patches."""

    def __init__(self, vision: VisionSpec, config: LayerConfig, layers: Layers) -> None:
        """`config` is the decoder's."""
        own = config_of_encoder(vision, config)
        super().__init__(config=own)
        width, side = vision.hidden_size, vision.patch_size
        self.vision = vision
        self.patches = torch.nn.Parameter(torch.empty(width, 3, side, side))
        self.class_token = torch.nn.Parameter(torch.empty(width))
        self.positions = torch.nn.Parameter(torch.empty(vision.positions, width))
        self.input_norm = Norm(own, width, vision.norm_epsilon)
        self.block = encoder_block(own, layers)
        if vision.freeze:
            self.requires_grad_(False)
        between = _config_of_projector(config)
        matrices = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        self.projector = MLP(between, matrices, input_size=width, ffn_hidden_size=between.ffn_hidden_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: [b, n, 3, size, size], uint8. Returns [n · patches of an image, b, h], of the decoder's h."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.vision.freeze):
            seen = self._encode(images.flatten(0, 1))[1:]  # without the token of the whole image
        projected, bias = self.projector(seen)
        by_image = (projected + bias).view(seen.size(0), *images.shape[:2], -1)  # [patches, b, n, h]
        embeddings: torch.Tensor = by_image.permute(2, 0, 1, 3).flatten(0, 1)
        return embeddings

    def _encode(self, images: torch.Tensor) -> torch.Tensor:
        """images: [n, 3, size, size]; what the last layer gives, [1 + patches, n, width]."""
        embedded = functional.linear(
            cut(scaled(images, self.vision, self.patches.dtype), self.vision.patch_size), self.patches.flatten(1)
        )
        whole = self.class_token.expand(1, embedded.size(1), -1)
        embedded = torch.cat([whole, embedded]) + self.positions.unsqueeze(1)
        encoded: torch.Tensor = self.block(hidden_states=self.input_norm(embedded), attention_mask=None)
        return encoded


def config_of_encoder(vision: VisionSpec, config: LayerConfig, **values: Any) -> LayerConfig:
    """Of the encoder's layers; `config` is the decoder's, `values` what they have otherwise than CLIP's."""
    head = vision.hidden_size // vision.num_attention_heads
    own: dict[str, Any] = {
        "num_layers": vision.num_layers,
        "hidden_size": vision.hidden_size,
        "ffn_hidden_size": vision.ffn_size,
        "num_attention_heads": vision.num_attention_heads,
        "num_query_groups": vision.num_attention_heads,
        "kv_channels": head,
        "softmax_scale": 1 / math.sqrt(head),
        "layernorm_epsilon": vision.norm_epsilon,
        "activation_func": _ACTIVATIONS[vision.activation],
        "recompute_method": "uniform" if config.recompute_granularity == "full" else None,
        "recompute_num_layers": 1 if config.recompute_granularity == "full" else None,
    }
    return plain_config(config, **{**own, **values})


def encoder_block(config: LayerConfig, layers: Layers) -> TransformerBlock:
    """The encoder's layers, without a norm behind them; `config` is the encoder's."""
    return TransformerBlock(
        config=config,
        spec=block_spec_of_encoder(config, layers),
        pre_process=True,
        post_process=False,
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
    )


def _config_of_projector(config: LayerConfig) -> LayerConfig:
    return plain_config(config, ffn_hidden_size=config.hidden_size, activation_func=gelu)


def plain_config(config: LayerConfig, **values: Any) -> LayerConfig:
    """A decoder's configuration as that of layers that are whole on one stage, and plain."""
    own = copy.deepcopy(config)
    plain: dict[str, Any] = {
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "pipeline_model_parallel_layout": None,
        "sequence_parallel": False,
        "distribute_saved_activations": False,
        "normalization": "LayerNorm",
        "layernorm_zero_centered_gamma": False,
        "qk_layernorm": False,
        "attention_output_gate": False,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "gated_linear_unit": False,
        "activation_func_clamp_value": None,
        "glu_linear_offset": 0.0,
        "bias_activation_fusion": False,
        "use_te_activation_func": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "softmax_type": "vanilla",
        "window_size": None,
        "window_attn_skip_freq": None,
        "apply_rope_fusion": False,
        "rotates_projection": config.rotates_images,
        "normalizes_in_kernels": config.normalizes_in_kernels,
    }
    for name, value in {**defaults_beyond_megatron(), **plain, **values}.items():
        setattr(own, name, value)
    return own


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
}


def block_spec_of_encoder(config: LayerConfig, layers: Layers, core: Any = None) -> TransformerBlockSubmodules:
    """Layers whose attention sees all patches; its core is `core`, or by default one without masks."""
    own = MaskedAttention if core is None and layers == "torch" else core
    block: TransformerBlockSubmodules = block_spec_function(layers)(config, None)
    width = config.ffn_hidden_size // config.tensor_model_parallel_size
    for layer in block.layer_specs:
        if filling(width, config.params_dtype.itemsize):
            submodules_of(layer.submodules.mlp).linear_fc2 = AlignedRowParallelLinear
        attention = layer.submodules.self_attention
        attention.params = {**attention.params, "attn_mask_type": AttnMaskType.no_mask}
        if own is not None:
            attention.submodules.core_attention = own
    return block
