"""Typed events of runs and of ledgers, and what is derived from several of them.

`RunDir.append` is the only writer: a reader sees either all events of a call or none. `RunDir.events()` is the only
reader; it returns an `EventLog`, whose methods are the only place for what is derived from several events
(`last_launch`, `since_submission`, `saved`, …). No other code inspects the objects of a line; a test checks that.
Labels (`labels.py`: name, tags, note, archived) are events too, in files of their own with one reducer, `Labels.of`;
`run_directory.labels` reads and writes them for runs and sweeps.
`launch.event_messages` has the one table from event to sentence.
"""
