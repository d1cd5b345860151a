"""Megatron orchestrator: one YAML spec in, a trained transformer out."""

__version__ = "0.1.0"
