"""Seconds of a training step, by part: what a job will take, before any GPU is held."""

from orchestrator.planning.time.step import PARTS, StepTime, estimate_time, faster_with_graphs, step_timeline

__all__ = ["PARTS", "StepTime", "estimate_time", "faster_with_graphs", "step_timeline"]
