"""Images of any size as embeddings of a decoder: the encoder of Qwen2.5-VL (Bai et al. 2025).

The patches of all images of a micro-batch are one sequence, in which attention goes no further than a window or an
image. Tensor parallelism splits it as `encoder` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from megatron.core import tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlock
from torch.nn import functional

from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.gated_linear_unit import use_gate
from orchestrator.runtime.layers.gelu import gelu
from orchestrator.runtime.layers.images.encoder import block_spec_of_encoder, config_of_encoder, plain_config
from orchestrator.runtime.layers.images.patch_order import Grid, angles, order_of
from orchestrator.runtime.layers.images.patches import cut_in_order, scaled
from orchestrator.runtime.layers.images.segment_attention import SegmentAttention
from orchestrator.runtime.layers.images.slots import Slots, out_of_slots
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.spec.native_resolution import FRAMES, ROTARY_BASE
from orchestrator.spec.sections.runtime import Layers
from orchestrator.spec.vision import VisionSpec


class NativeEncoder(MegatronModule):
    """From images of any size to the embeddings of the groups of their patches."""

    def __init__(self, vision: VisionSpec, config: LayerConfig, layers: Layers) -> None:
        """`config` is the decoder's."""
        own = config_of_native_encoder(vision, config)
        super().__init__(config=own)
        width, side = vision.hidden_size, vision.patch_size
        self.vision = vision
        self.patches = torch.nn.Parameter(torch.empty(width, 3, FRAMES, side, side))
        self.block = _Layers(
            config=own,
            spec=block_spec_of_encoder(own, layers, SegmentAttention),
            pre_process=True,
            post_process=False,  # the norm behind the last layer is the merger's
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        )
        self.merger_norm = Norm(own, width, vision.norm_epsilon)
        if vision.freeze:
            self.requires_grad_(False)
        group = width * vision.merge_size**2
        between = plain_config(config, ffn_hidden_size=group, activation_func=gelu)
        matrices = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        self.projector = MLP(between, matrices, input_size=group, ffn_hidden_size=group)

    def forward(self, images: torch.Tensor | Sequence[torch.Tensor], grids: torch.Tensor) -> torch.Tensor:
        """images: of each row uint8 [numbers], the pixels [3, rows, columns] of its images one after the other; what
        is behind them does not count. The grids of their patches are `grids`, [b, n, 2] in the host's memory, 0 by 0
        where there are fewer.

        Returns [tokens, h]: of one row after the other the tokens of its images, row by row.
        """
        assert grids.is_cpu, "to read them from a device is to wait for all that it has been given to do"
        rows: list[list[Grid]] = [[(down, across) for down, across in row if down] for row in grids.tolist()]
        every = [grid for row in rows for grid in row]
        pixels = [each for own, row in zip(images, rows, strict=True) for each in self._pixels(own, row)]
        if not every:
            # The weights need gradients even so: of an image of one token, which stands nowhere.
            every = [(self.vision.merge_size, self.vision.merge_size)]
            pixels = self._pixels(self.patches.new_zeros(3 * self.vision.unit**2, dtype=torch.uint8), every)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.vision.freeze):
            encoded = self._encode(pixels, every)
        projected, bias = self.projector(encoded.view(-1, 1, encoded.size(-1) * self.vision.merge_size**2))
        return self._row_by_row((projected + bias).squeeze(1), every)

    def _pixels(self, row: torch.Tensor, grids: Sequence[Grid]) -> list[torch.Tensor]:
        """Those of each image of a row."""
        counts = [3 * down * across * self.vision.patch_size**2 for down, across in grids]
        return list(row[: sum(counts)].split_with_sizes(counts)) if counts else []

    def _encode(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        """What the norm behind the last layer gives, [patches, width], window by window."""
        device, orders = self.patches.device, [order_of(grid, self.vision) for grid in grids]
        side, channels = self.vision.patch_size, self.config.kv_channels
        cut = torch.cat([cut_in_order(*each, side) for each in zip(pixels, grids, orders, strict=True)])
        hidden = functional.linear(self._scaled(cut), self.patches.sum(dim=2).flatten(1))
        turned = [
            angles(order.patches, columns, channels, ROTARY_BASE)
            for order, (_, columns) in zip(orders, grids, strict=True)
        ]
        windows = torch.tensor([length for order in orders for length in order.windows])
        whole = torch.tensor([rows * columns for rows, columns in grids])
        of_layers = [
            whole if self.vision.native.is_full(number) else windows for number in range(self.vision.num_layers)
        ]
        rotation = torch.cat(turned).to(device, non_blocking=True)[:, None, None]
        encoded: torch.Tensor = self.merger_norm(self.block(hidden.unsqueeze(1), of_layers, rotation))
        return encoded.squeeze(1)

    def _scaled(self, patches: torch.Tensor) -> torch.Tensor:
        """Around 0, in the format of the weights: [patches, 3 · side · side]."""
        return scaled(patches.view(patches.size(0), 3, -1), self.vision, self.patches.dtype).flatten(1)

    def _row_by_row(self, embeddings: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """[tokens, h] window by window, as [tokens, h] row by row."""
        rows, places, first = [], [], 0
        for order in (order_of(grid, self.vision) for grid in grids):
            rows.append(order.tokens + first)
            places.append(order.groups + first)
            first += len(order.groups)
        device = embeddings.device
        own = Slots(*(torch.cat(each).to(device, non_blocking=True) for each in (rows, places)))
        return out_of_slots(embeddings, own)


class _Layers(TransformerBlock):
    """Layers each of which has its own segments."""

    def forward(
        self, hidden: torch.Tensor, segments_of_layers: Sequence[torch.Tensor], rotation: torch.Tensor
    ) -> torch.Tensor:
        """hidden: [patches, 1, width]; rotation: [patches, 1, 1, d], in radians. Segments are `SegmentAttention`'s."""
        for layer, own in zip(self.layers, segments_of_layers, strict=True):

            def run(
                hidden: torch.Tensor, segments: torch.Tensor, rotation: torch.Tensor, layer: torch.nn.Module = layer
            ) -> torch.Tensor:
                out: torch.Tensor = layer(hidden, attention_mask=segments, rotary_pos_emb=rotation)[0]
                return out

            if self.config.recompute_granularity == "full" and self.training:
                hidden = tensor_parallel.checkpoint(run, False, hidden, own, rotation)
            else:
                hidden = run(hidden, own, rotation)
        return hidden


def config_of_native_encoder(vision: VisionSpec, config: LayerConfig) -> LayerConfig:
    """Of the encoder's layers; `config` is the decoder's, whose gate of kernels of ours it shares."""
    own = config_of_encoder(
        vision, config, normalization="RMSNorm", gated_linear_unit=True, activation_func=functional.silu
    )
    if config.use_te_activation_func:
        use_gate(own, "swiglu")
    return own
