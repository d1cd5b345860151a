"""`python -m orchestrator.tracking`: see program.py."""

from __future__ import annotations

import sys

from orchestrator.tracking.program import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
