"""`python -m orchestrator` is the `orchestrator` command."""

import sys

from orchestrator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
