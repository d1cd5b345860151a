"""Measuring a job on this machine, and comparing the result with its plan and the roofline.

`bench.measurement.measure` runs `python -m orchestrator.runtime.bench` in a run named `<name>-bench` that is kept. Rank
0 writes `bench/result.json` after the timed steps and again after the profile. If `profile` is missing, the measurement
failed in between, and the report says so. `runtime.bench.kernels` is the one table of kernel names. The training calls
`session.mark` at points of a step; it does nothing without a profile.
"""
