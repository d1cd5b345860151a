"""Events of runs and of ledgers, typed, and what follows from several of them.

`RunDir.append` is the only writer: what it is given together, a reader sees together. `RunDir.events()` is the only
reader; it returns an `EventLog`, whose methods are the one place of what follows from several events (`last_launch`,
`since_submission`, `saved`, …). Nothing else looks into the objects of a line; a test checks that.
Labels (`labels.py`: name, tags, note, archived) are events too, in files of their own with one reducer, `Labels.of`;
`run_directory.labels` reads and writes them, for runs and sweeps alike.
`launch.event_messages` has the one table from event to sentence.
"""
