"""`python -m orchestrator.dashboard`: see program.py."""

from __future__ import annotations

import sys

from orchestrator.dashboard.program import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
