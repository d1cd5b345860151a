"""What a job reaches on this machine: measured, held against its plan and against the roofline.

`bench.measurement.measure` runs `python -m orchestrator.runtime.bench` in a run named `<name>-bench` that is kept.
Rank 0 writes `bench/result.json` after the timed steps and again after the profile: without `profile` the measurement
failed in between, and the report says so. `runtime.bench.kernels` is the one table of kernels' names. `session.mark`
is told of the moments of a step and does nothing unless one is profiled.
"""
