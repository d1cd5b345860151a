"""Many runs of one job: which cells a sweep has, how far they are, and starting them.

`sweeps.loading.load_sweep` gives the cells of a sweep, each a JobSpec that `load_job` would have made with the same
values as `--set`, and the points that cannot run with their problems. Wrong fields, values and conditions raise
SpecError with every problem at its place. No code of a sweep file is ever run.

The id of a cell is its configuration hash. It stays that of its first start when its job is edited later
(`sweeps.plans.match_cells`: the same values, the same cell). The newest `planned` event of the ledger that was not
withdrawn is what the sweep is; `sweeps.states.cell_state` derives the state of a cell from its run.
`sweeps.ending.tell_of_sweep` tells once for each time that cells were started, when none of them is under way any
more.

Only `sweeps.executor` imports submitit; it is started as `python -m orchestrator.sweeps` with a request on standard
input (`sweeps.request`).
"""
