"""GPT: documents joined end to end and cut into sequences, or conversations."""

from __future__ import annotations

from typing import Any

from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from orchestrator.data.families import chat
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec


def dataset(model: ModelSpec, data: DataSpec, settings: dict[str, Any]) -> tuple[type[Any], Any]:
    """Item i holds `tokens`, `labels`, `position_ids` (int64) and `loss_mask` (float32), each [s]; of conversations
    `segment_ids` too, and of those that a model sees `images` and `image_mask`.
    """
    if data.has_conversations:
        return chat.dataset(data.conversations, model.vision, settings)
    config = GPTDatasetConfig(
        **settings,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=False,
        eod_mask_loss=data.eod_mask_loss,
        create_attention_mask=False,
    )
    return GPTDataset, config
