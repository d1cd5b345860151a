"""The tuner: finds the fastest layout of a job that fits its GPUs, by planning's estimates and by measuring.

`tuning.search.search(Space(job, kept), estimates)` is a pure function: the layouts that fit by its estimates, the
fastest first, and why the others were left out. What it proposes is legal by `spec.rules`, trains the same (global
batch, model, data, schedule), fits, and by estimate is never slower than the job's own layout, if that fits.
`tuning.overlay.overlay_text` is a spec overlay that contains every key the tuner may choose, and begins with
`tuning.overlay.MARK`. `tuning.trial.Trials` runs layouts in runs that it removes, and keeps the measurements.

`tune --json` contains at least `best`, `own` (null if the job's layout is not legal on these GPUs), `top`, `front`,
`lost`, `trials`, `path` and `overlay`; a layout is what the overlay says, by section.
"""
