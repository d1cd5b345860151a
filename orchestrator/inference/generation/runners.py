"""Which passes a decoder generates with."""

from __future__ import annotations

from orchestrator.inference.generation.decoder import DecoderRunner
from orchestrator.inference.generation.multimodal_decoder import MultimodalRunner
from orchestrator.inference.generation.self_drafting import SelfDraftingRunner
from orchestrator.inference.network import Network


def runner_of(network: Network) -> DecoderRunner:
    """Those of a decoder's stage."""
    model = network.job.model
    if model.mrope_section is not None:
        return MultimodalRunner(network)
    return SelfDraftingRunner(network) if model.predicts_further else DecoderRunner(network)
