"""Arithmetic on a job spec: predicts a job before anything is started. Pure functions, light imports.

The functions work for every spec that can be stored, even if a rule of the spec refuses the layout.
`BatchSchedule.of(job)` and `HyperparameterSchedule.of(job)` depend only on the consumed samples and equal Megatron's
step for step; the runtime uses them before each step. Lengths in samples or tokens are rounded up to whole steps.

`make_plan(job)` raises SpecError for errors in the vocabulary; data that is not on this machine is a note.
`planning.blend.blend_report` is exact for what `data.samples.datasets.build_datasets` builds.
`planning.forecast.forecast` gives memory, step time, length, GPU-hours and energy on the GPU that
`planning.hardware.device_of` finds. `planning.warnings.judge` returns stops, warnings and what is fine, as Problems
whose first path is the job's key. An assumed GPU never leads to a stop. Each problem has a `code`: its own, the name of
its rule, or the key of `planning.warnings.WARNINGS`; programs distinguish problems only by their codes.
`checkpoint_room` and, on this machine, `no_weights` stop a start.

`planning.suggestions.remedy_search.remedies` returns changed jobs that keep the rules and the global batch and fit,
cheapest in GPU-seconds first, with the `--set` words for the change. `planning.layout.reshaping.judge_reshape` is the
verdict on a checkpoint that is to continue as another job.

`plan --json` contains at least `parameters.total`, `parameters.per_rank`, `topology`, `batch`, `steps`, `samples`,
`tokens`, `flops`, `blend`, `blend_report` and `notes`. Ranks of groups are not listed: iterate `Topology.groups[kind]`.
"""
