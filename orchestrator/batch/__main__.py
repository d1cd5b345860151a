"""`python -m orchestrator.batch`: the supervisor of a SLURM job, `executors/slurm/supervisor/`."""

import sys

from orchestrator.executors.slurm.supervisor.command_line import main

if __name__ == "__main__":
    sys.exit(main())
