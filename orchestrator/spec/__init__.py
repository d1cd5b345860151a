"""The job spec: typed, checked and frozen.

`spec.loading.load_job` and `load_text` return a `LoadedJob` (`job`, `places`, `text` as written), or raise SpecError
with every problem, in the order of their positions. `places.placed(problem)` adds the position to a later problem.
`load_document` reads any other kind of file with the same positions and suggestions.

A JobSpec, however it was made, satisfies every rule of `spec.rules`. Only a spec that `load_resolved` read from a run
directory may break a rule that is newer than the run; keys that this version does not know are left out of it.
`dump_resolved(job)` is JSON that `load_resolved` and `load_text` read back as an equal job with the same `config_hash`.

A new key, or a new section around it, is declared with `HashedIfChanged()`: the hash leaves it out at its default, so
stored runs and cells of sweeps still match their specs. `kernel_selection.changes.diff_jobs(old, new)` has a class and
a reason for every field.

`${env:NAME}` stays unresolved in a spec. Only values of `launch.env`, `tracking.uri` and `notifications.webhook` may
contain it, and the code that uses them resolves it. Sizes fit in 32 bits, counts in 62, no float is infinite, and no
text contains control characters except tab and line feed.
"""
