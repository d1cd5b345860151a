"""Features of jobs and models that not every family, attention or kernel supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from orchestrator.models.registry import BERT, GPT, MAMBA, ModelFamily

RuledOut = Literal["cuda_graphs", "flash_attention", "generation_graphs", "images", "tensor_overlap"]
"""What some features rule out: passes as CUDA graphs, FlashAttention 4, passes of generation as CUDA graphs, images
among the tokens, and tensor parallelism that sends while it multiplies."""


class Feature(NamedTuple):
    """Something that a job may have. What a model has by a block is in the `offers` of the block's row."""

    name: str
    """By which rules, and the rows of attentions, mean it."""
    path: str = ""
    """The field by which a job asks for it; "" where none does, and it is chosen where it goes."""
    is_used: Callable[[Any], bool] = lambda job: False
    """Whether a job has it."""
    families: tuple[ModelFamily, ...] = (GPT,)
    """Whose models may have it."""
    concerns_attention: bool = True
    """Whether it goes with those attentions only whose rows list it. It does not where it has nothing to do with
    attention, or where rules of its block say with which it goes."""
    rules_out: Mapping[RuledOut, str] = MappingProxyType({})
    """What a job with it cannot have, and why."""

    def goes_with(self, family: ModelFamily) -> bool:
        """Whether models of a family may have it."""
        return family in self.families


OF_JOBS: Final = (
    Feature(
        "adapters",
        "model.lora",
        lambda job: bool(job.model.has_adapters),
        families=(GPT, MAMBA),
        rules_out={
            "images": "adapters freeze everything else, including what should learn from images",
            "tensor_overlap": "adapters stand beside torch's layers",
        },
    ),
    Feature(
        "context_parallelism",
        "parallelism.context_parallel_size",
        lambda job: bool(job.parallelism.context_parallel_size > 1),
        families=(GPT, MAMBA),
        rules_out={"flash_attention": "it does not exchange keys and values"},
    ),
    Feature("conversations", "data.chat", lambda job: bool(job.data.has_conversations), families=(GPT, MAMBA)),
    Feature("flash_attention", "runtime.attention_backend", lambda job: bool(job.runtime.attention_backend == "flash")),
    Feature(
        "images",
        "model.vision",
        lambda job: bool(job.model.has_vision),
        rules_out={"tensor_overlap": "it was not measured for images"},
    ),
    Feature(
        "images_of_any_size",
        "model.vision.type",
        lambda job: bool(job.model.has_vision and job.model.image_encoder.kind.keeps_shape),
        concerns_attention=False,
        rules_out={"cuda_graphs": "images of any size have other kernels in each micro-batch"},
    ),
    Feature(
        "joined_loss", "runtime.fused_linear_cross_entropy", lambda job: bool(job.runtime.fused_linear_cross_entropy)
    ),
    Feature("rotated_projection", families=(BERT, GPT)),
    Feature(
        "task_head",
        "task",
        lambda job: bool(job.has_task),
        families=(BERT,),
        concerns_attention=False,
        rules_out={"tensor_overlap": "micro-batches of a task have other shapes"},
    ),
    Feature("tensor_overlap", "parallelism.tp_comm_overlap", lambda job: bool(job.parallelism.tp_comm_overlap is True)),
)
"""What no block brings: low-rank adapters, sequences cut over ranks, training on conversations, FlashAttention 4,
images among the tokens, images that keep their size, an output layer joined with its loss, rotary positions applied by
a kernel of our own, a head for labelled examples, and tensor parallelism that sends while it multiplies."""
