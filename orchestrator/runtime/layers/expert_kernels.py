"""Kernels of experts that a run has: of those that the policy wants what the installed libraries have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megatron.core.transformer.moe import moe_utils

from orchestrator.errors import MissingDependency
from orchestrator.kernel_selection.experts import expert_kernels
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
