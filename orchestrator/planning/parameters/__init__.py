"""Exact parameter counts of a job, per (tensor, pipeline) rank."""

from orchestrator.planning.parameters.choice import parameters, stage_parameters
from orchestrator.planning.parameters.counts import Parameters, RankParameters
from orchestrator.planning.parameters.experts import layers_with_experts, stage_expert_parameters
from orchestrator.planning.parameters.layer import layer_parameters

__all__ = [
    "Parameters",
    "RankParameters",
    "layer_parameters",
    "layers_with_experts",
    "parameters",
    "stage_expert_parameters",
    "stage_parameters",
]
