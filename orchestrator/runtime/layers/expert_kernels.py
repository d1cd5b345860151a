"""Mixture of experts: its kernels, and which layers of a chunk have experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from orchestrator.errors import MissingDependency
from orchestrator.kernel_selection.experts import expert_kernels
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.parameter_attributes import mark_split
from orchestrator.runtime.layers.transformer_engine.availability import absence
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

PERMUTING = (
    *("fused_permute", "fused_permute_with_probs", "fused_unpermute"),
    *("fused_sort_chunks_by_index", "fused_sort_chunks_by_index_with_probs"),
)
ROUTING = ("fused_topk_with_score_function", "fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss")
"""Functions of Transformer Engine by megatron-core's names, which are None where its version does not have them."""


def require_grouped_products(job: JobSpec, layers: Layers) -> None:
    """Raises MissingDependency when grouped matrix products are asked for where Transformer Engine's layers are not
    used.
    """
    if job.model.has_experts and job.model.moe_grouped_gemm and layers != "transformer_engine":
        raise MissingDependency(
            "model.moe_grouped_gemm is true, which needs Transformer Engine's layers, and this run has torch's: "
            f"{absence()}; leave moe_grouped_gemm out"
        )


def kernel_settings(job: JobSpec, layers: Layers) -> dict[str, Any]:
    """What TransformerConfig takes about their kernels: megatron-core refuses what is asked for in vain."""
    return expert_kernels(job, layers, has_permutation=_has(PERMUTING), has_router=_has(ROUTING))


def _has(names: Iterable[str]) -> bool:
    return all(getattr(moe_utils, name, None) is not None for name in names)


class LayerKind(NamedTuple):
    """What layers differ in."""

    mixer: str
    """The block of `models.blocks` that it attends with."""
    has_experts: bool


def layers_of_chunk(config: LayerConfig, vp_stage: int | None) -> list[LayerKind]:
    """Each layer of a model chunk of this rank's stage."""
    count: int = get_num_layers_to_build(config, vp_stage=vp_stage)
    are_alike = not config.mixers and not isinstance(config.moe_layer_freq, list)
    first: int = 0 if are_alike else get_transformer_layer_offset(config, vp_stage=vp_stage)
    numbers = range(first + 1, first + count + 1)
    return [LayerKind(config.mixer_of(number), _has_experts(config, number)) for number in numbers]


def _has_experts(config: TransformerConfig, layer_number: int) -> bool:
    if config.num_moe_experts is None:
        return False
    listed = config.moe_layer_freq
    return bool(listed[layer_number - 1]) if isinstance(listed, list) else True


def keep_experts_apart(chunks: Iterable[Any]) -> None:
    """Reduce the gradients of experts over the ranks that hold the same ones, also where none are spread (EP = 1).

    megatron-core does so with EP > 1 only, and gives them an optimizer of their own then. Always the same way means
    that a checkpoint is the same at every EP, and that experts may be split otherwise than attention is.
    """
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if ".mlp.experts." in name:
                parameter.allreduce = False
                if name.endswith(".bias"):
                    # megatron-core takes that of the second linear for a dense MLP's, of which every tensor-parallel
                    # rank has the same, with a gradient from its part of the sequence.
                    parameter.sequence_parallel = False
                    mark_split(parameter)
