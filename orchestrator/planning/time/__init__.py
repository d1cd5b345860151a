"""Seconds of a training step, by part, before any GPU is allocated.

`estimate_time` gives the seconds of a step at full batch size by part. The parts are never negative and add up to
`step_seconds`. It takes under 20 ms for any job. `planning.time.fits.fitting.fit` changes a device's efficiencies as
little as possible to explain the observations. `planning.time.roofline.roofline` gives the least seconds by part.
"""

from orchestrator.planning.time.step import PARTS, StepTime, estimate_time, faster_with_graphs, step_timeline

__all__ = ["PARTS", "StepTime", "estimate_time", "faster_with_graphs", "step_timeline"]
