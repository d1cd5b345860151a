"""Telling a command and a webhook of the user's how a run ended, by a process of its own (`__main__.py`).

`launch.notifications.process`: `begin` starts the process that tells of a start on this machine, `over` lets it tell;
it also tells of a launcher that is gone without an `exited` event, once the ranks have left the lease. `tell_now`
tells what the events say by now, within a time, where the end of this process would end everything (SLURM). All read
the run directory only. The value of a reference is in neither the event `notified` nor the log.
"""
