"""The measurements of `orchestrator bench`: `python -m orchestrator.runtime.bench RUN_DIR`, once per rank."""
