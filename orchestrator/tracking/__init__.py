"""The metric log of a run directory, and sending it to MLflow.

Rank 0 starts a follower (`tracking.follower.start_follower`), a process that reads the run directory and sends it to
its trackers (`tracking.trackers`: the protocol, and the available ones). It writes its position and a log, and nothing
else. It ends within 15 seconds after it is asked to or its parent is gone. If it was ended together with its ranks,
whoever ended them starts another one for the end (`send_the_end`). MLflow can be lost and rebuilt from the rest: only
`tracking.mlflow.links.mlflow_url` reads the follower's files.

`tracking.measurements.goodput.goodput(events, metrics, now)` is a pure function of both logs, in any condition; its
parts are never negative and add up to the wall time. `tracking.measurements.inputs.read_inputs` and
`tracking.measurements.system.read_measurements` read what the ranks recorded.

`python -m orchestrator.tracking --once` prints one JSON object for each run: `state` is `failed` if one tracker failed,
`metrics` counts the values sent to all.
"""
