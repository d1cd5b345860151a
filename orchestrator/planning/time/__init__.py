"""Seconds of a training step, by part: what a job will take, before any GPU is held."""

from orchestrator.planning.time.step import PARTS, StepTime, captures_passes, estimate_time, step_timeline

__all__ = ["PARTS", "StepTime", "captures_passes", "estimate_time", "step_timeline"]
