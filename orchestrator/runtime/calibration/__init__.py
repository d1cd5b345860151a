"""Short measurements of the machine at hand: `python -m orchestrator.runtime.calibration --output FILE`."""
