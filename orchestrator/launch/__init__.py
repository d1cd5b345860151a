"""Launch scripts, starting runs, and seeing them through to their end.

Every Python program is started as `python -P -m MODULE …` (`safe_path.module_command`): it does not import from the
working directory, and neither do the programs that it starts. No environment variable does this, because the user's
own programs would inherit it. git runs none of the programs that a repository's own settings name
(`code_version.git`).

The launch script runs `python -P -m torch.distributed.run … --no-python python -P -u -m orchestrator.runtime RUN_DIR
[--from-scratch]`. The launcher sets `ORCHESTRATOR_LAUNCH_ID`, one per start, for all processes. The runtime reads the
newest `resolved*.json` of the run directory and nothing else.

A run that was started before and has no checkpoint is refused before anything is started or written, unless
`--from-scratch` is given; one whose checkpoints cannot be read fails in the runtime.

`continuation.find_continuation` alone decides which run a job continues: the latest run of exactly this spec, else the
last chosen one that `is_settled` (safe changes, or completed and longer), else the last chosen one with a checkpoint
or a live process, whose changes a person has to allow. A person chooses a run by creating, submitting or launching it.
A generation that nothing was started with is removed again (`runs.taken_back`).
"""
