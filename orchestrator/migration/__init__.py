"""Other tools' jobs and ours: Megatron-LM's flags and Accelerate's YAML to a job spec, and a job spec to flags.

`migration.from_megatron.migrate_script` and `migrate_words`, and `migration.from_accelerate.migrate_accelerate`, return
a Migration: `values` by dotted path, their `sources`, an Account for every flag, what is `missing`, `notes`, and
`refused` for a family that is not supported. Nothing in a script is run, and files are read only through `read_file`.

A flag is declared with the field that it sets (`fields.metadata.MegatronFlag`), in `migration.megatron_flags.table` if
its values differ from the field's (one field each, both directions), in `migration.flag_groups` (several flags, both
directions), or in `migration.megatron_flags.unsupported_flags` (no field). `migration.to_megatron.to_megatron(job)`
returns the flags, and `unsaid` and `otherwise`: the only fields that `migrate` may read back differently.
"""
