"""Exact parameter counts of a job, per (tensor, pipeline) rank."""

from orchestrator.planning.parameters.counts import Parameters, RankParameters
from orchestrator.planning.parameters.layer import layer_parameters, stage_expert_parameters
from orchestrator.planning.parameters.registry import parameters, stage_parameters

__all__ = [
    "Parameters",
    "RankParameters",
    "layer_parameters",
    "parameters",
    "stage_expert_parameters",
    "stage_parameters",
]
