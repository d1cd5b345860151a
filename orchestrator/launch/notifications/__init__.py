"""Notifying the user's command and webhook of how a run ended, from a separate process (`__main__.py`).

In `launch.notifications.process`, `begin` starts the process that notifies of a start on this machine, and `over` tells
it to do so; it also notifies of a launcher that is gone without an `exited` event, once the ranks have released the
lease. `tell_now` notifies of the current state of the events, within a time limit, if the end of this process would end
everything (SLURM). All read only the run directory. The value of a reference appears neither in the event `notified`
nor in the log.
"""
