"""Seconds of a training step, by part: what a job will take, before any GPU is held."""

from orchestrator.planning.time.step import PARTS, StepTime, estimate_time, step_timeline, waits_for_host

__all__ = ["PARTS", "StepTime", "estimate_time", "step_timeline", "waits_for_host"]
