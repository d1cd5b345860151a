"""The tuner: the fastest layout of a job that fits its GPUs. Searched with the estimates of planning, and measured.

`tuning.search.search(Space(job, kept), estimates)` is a pure function: what fits by its estimates, the fastest first,
and why the rest was left out. What it proposes is legal by `spec.rules`, trains the same (global batch, model, data,
schedule), fits, and is never slower by estimate than the job's own layout where that fits.
`tuning.overlay.overlay_text` is a spec overlay that holds every key the tuner may choose, and begins with
`tuning.overlay.MARK`. `tuning.trial.Trials` runs layouts in runs that it removes, and keeps what it measured.

`tune --json` holds at least `best`, `own` (null where the job's layout is not legal on these GPUs), `top`, `front`,
`lost`, `trials`, `path` and `overlay`; a layout is what the overlay says, by section.
"""
