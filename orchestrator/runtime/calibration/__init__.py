"""Short measurements of this machine: `python -m orchestrator.runtime.calibration --output FILE`."""
