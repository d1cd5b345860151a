"""Seconds of a training step, by part: what a job will take, before any GPU is held.

`estimate_time` gives seconds of a step at full batch size by part; the parts are never negative and add up to
`step_seconds`; it takes under 20 ms for any job. `planning.time.fits.fitting.fit` moves a device's efficiencies as
little as explains the observations. `planning.time.roofline.roofline` has the least seconds by part.
"""

from orchestrator.planning.time.step import PARTS, StepTime, estimate_time, faster_with_graphs, step_timeline

__all__ = ["PARTS", "StepTime", "estimate_time", "faster_with_graphs", "step_timeline"]
