"""The job spec: what a person writes, typed, checked and frozen.

`spec.loading.load_job` and `load_text` give a `LoadedJob` (`job`, `places`, `text` as written), or raise SpecError
with every problem, in the order of places. `places.placed(problem)` gives a later problem its place. `load_document`
reads any other kind of file with the same places and suggestions.

A JobSpec, however it was made, keeps every rule of `spec.rules`. Only one that `load_resolved` read from a run
directory may break a rule that is younger than the run; keys that this version does not know are left out of it.
`dump_resolved(job)` is JSON that `load_resolved` and `load_text` read back as an equal job with the same
`config_hash`.

A new key is declared with `HashedIfChanged()`, or a new section around it is: the hash leaves it out at its default,
so stored runs and cells of sweeps stay those of their specs. `diff_jobs(old, new)` has a class and a reason for every
field.

`${env:NAME}` stays as it is in a spec. Only values of `launch.env`, `tracking.uri` and `notifications.webhook` may
hold it, and who uses them resolves them. Sizes fit in 32 bits, counts in 62, no float is infinite, and no text holds
control characters but tab and line feed.
"""
