"""`python -m orchestrator.batch.node`: a node of a SLURM job, `executors/slurm/supervisor/node.py`."""

import sys

from orchestrator.executors.slurm.supervisor.node import main

if __name__ == "__main__":
    sys.exit(main())
