"""Other tools' jobs and ours: Megatron-LM's flags and Accelerate's YAML become a job spec, and a job spec flags.

`migration.from_megatron.migrate_script` and `migrate_words`, and `migration.from_accelerate.migrate_accelerate`, give
a Migration: `values` by dotted path, their `sources`, an Account for every flag, what is `missing`, `notes`, and
`refused` for a family that is not there. Nothing of a script is run, and no file is read but through `read_file`.

A flag stands in the declaration of the field that it is (`fields.metadata.MegatronFlag`) or, with values of its own,
in `migration.megatron_flags.table` (one field each, both directions), in `migration.combined_flags` (several flags,
both directions), or in `migration.megatron_flags.unsupported_flags` (no field).
`migration.to_megatron.to_megatron(job)` gives the flags, and `unsaid` and `otherwise`: the only fields in which what
`migrate` reads back may differ.
"""
