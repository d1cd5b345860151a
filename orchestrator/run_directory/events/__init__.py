"""Events of runs and of ledgers, typed, and what follows from several of them.

`RunDir.append` is the only writer: what it is given together, a reader sees together. `RunDir.events()` is the only
reader; it returns an `EventLog`, whose methods are the one place of what follows from several events (`last_launch`,
`since_submission`, `saved`, …). Nothing else looks into the objects of a line; a test checks that.
`launch.event_messages` has the one table from event to sentence.
"""
