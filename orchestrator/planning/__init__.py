"""Arithmetic on a job spec: what it will do, before anything is started. Pure functions, light imports.

The functions hold for every spec that can be stored, also where a rule of the spec refuses the layout.
`BatchSchedule.of(job)` and `HyperparameterSchedule.of(job)` are functions of the consumed samples alone and equal
Megatron's step for step: the runtime asks them before each step. Lengths in samples or tokens are rounded up to whole
steps.

`make_plan(job)` raises SpecError for what is wrong with the vocabulary; data that is not on this machine is a note.
`planning.blend.blend_report` is exact for what `data.samples.datasets.build_datasets` builds.
`planning.forecast.forecast` gives memory, step time, length, GPU-hours and energy on the GPU that
`planning.hardware.device_of` finds. `planning.verdict.judge` gives stops, warnings and what is fine, as Problems
whose first path is the job's key. A GPU that is only assumed never gives a stop. Each problem has a `code`: its own,
the name of its rule, or the key of `planning.verdict.WARNINGS`; programs tell problems apart by their codes alone.
`checkpoint_room` and, on this machine, `no_weights` stop a start.

`planning.suggestions.remedies.remedies` gives changed jobs that keep the rules and the global batch and fit, cheapest
GPU-seconds first, with the `--set` words that make them. `planning.layout.reshaping.judge_reshape` is the verdict on
a checkpoint that is to continue as another job.

`plan --json` holds at least `parameters.total`, `parameters.per_rank`, `topology`, `batch`, `steps`, `samples`,
`tokens`, `flops`, `blend`, `blend_report` and `notes`. Ranks of groups are not listed: iterate
`Topology.groups[kind]`.
"""
