"""Notifying the user's command and webhook of how a run ended, from a separate process (`__main__.py`).

In `launch.notifications.process`, `begin` starts the process that reports on a start on this machine, and `over` lets
it report; it also reports a launcher that is gone without an `exited` event, once the ranks no longer hold the lease.
`tell_now` reports what the events say so far, within a time limit, if the end of this process would end everything
(SLURM). All read only the run directory. The value of a reference appears neither in the event `notified` nor in the
log.
"""
