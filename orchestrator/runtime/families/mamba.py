"""A decoder of state space layers (Mamba-2; Dao & Gu 2024), or a hybrid of these with attention and MLPs.

It is the decoder of `families.gpt` with layers of other kinds, each one branch of the residual stream: so pipelines,
tied embeddings and checkpoints are a GPT's. megatron-core's MambaModel, whose state space layer this uses, has neither
virtual stages nor the same constructor from version to version.
"""

from __future__ import annotations

import importlib

from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.kernel_selection.libraries import require_libraries
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.families.base import virtual_stage
from orchestrator.runtime.families.gpt import GPT, decoder
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.steps.gpt import NextToken
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


def build_chunk(
    job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> GPT:
    """Model chunk `index` of this rank. Raises MissingDependency where its kernels are not installed."""
    require_libraries(job)
    # Only here: importing these layers imports mamba-ssm's kernels, which other models do without.
    hybrid_layers = importlib.import_module("orchestrator.runtime.layers.hybrid_layers")
    block = hybrid_layers.block_spec(config, virtual_stage(job, index), layers_of(job.model), layers)
    return decoder(job, config, block, vocabulary, ranks, index, GPT)


def train_step(job: JobSpec) -> NextToken:
    """Cross entropy of the next token."""
    return NextToken()
