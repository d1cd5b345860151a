"""Many runs of one job: the cells of a sweep, their progress, and starting them.

`sweeps.loading.load_sweep` returns the cells of a sweep, each the JobSpec that `load_job` would have made with the same
values as `--set`, and the points that cannot run, with their problems. Invalid fields, values and conditions raise
SpecError with every problem at its position. No code in a sweep file is ever run.

The id of a cell is its configuration hash. If its job is edited later, the cell keeps the id of its first start
(`sweeps.plans.match_cells`: the same values, the same cell). The newest `planned` event of the ledger that was not
withdrawn defines the sweep; `sweeps.states.cell_state` derives the state of a cell from its run.
`sweeps.ending.tell_of_sweep` notifies once for each time that cells were started, when none of them is under way any
more.

Only `sweeps.executor` imports submitit; it is started as `python -m orchestrator.sweeps` with a request on standard
input (`sweeps.request`).
"""
