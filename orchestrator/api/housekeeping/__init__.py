"""Labels of runs and sweeps, and deleting them: what the commands, the interface and the dashboard share.

Nothing here starts or touches a training. `labelling` writes events beside those of the training, `deletion` moves
what nobody works on into the trash of its runs folder, and `trash` puts it back or removes it for good. MLflow follows
in a process of its own (`tracking.follower.send_in_background`), or with `orchestrator sync`.
"""
