"""`python -m orchestrator` is the `orchestrator` command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which `-m` puts there: see safe_path.py

    from orchestrator.cli.main import main

    sys.exit(main())
