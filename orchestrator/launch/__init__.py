"""Launch scripts, starting runs, and supervising them until they end.

Every Python program is started as `python -P -m MODULE …` (`safe_path.module_command`): it does not import from the
working directory, and neither do the programs that it starts. No environment variable is used for this, because the
user's own programs would inherit it. git runs none of the programs named in a repository's own settings
(`code_version.git`).

The launch script runs `python -P -m torch.distributed.run … --no-python python -P -u -m orchestrator.runtime RUN_DIR
[--from-scratch]`. The launcher sets `ORCHESTRATOR_LAUNCH_ID`, one per start, for all processes. The runtime reads the
newest `resolved*.json` of the run directory and nothing else.

A run that was started before and has no checkpoint is refused before anything is started or written, unless
`--from-scratch` is given; a run whose checkpoints cannot be read fails in the runtime.

Only `continuation.find_continuation` decides which run a job continues: the latest run of exactly this spec; otherwise
the last chosen run that `is_settled` (safe changes, or completed and longer); otherwise the last chosen run that has
saved, completed or lives, whose changes a person has to allow; nothing of it can be continued where `is_lost`, none of
its checkpoints being whole any more. A person chooses a run by creating, submitting or
launching it. A generation that never started anything is removed again (`runs.taken_back`).
"""
