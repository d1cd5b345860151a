"""Write constraints.txt: the versions that are installed now, for `pip install -c`."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

HEADER = """\
# Versions that the tests ran with; written by `make constraints`.
"""

# The newest megatron-core needs Python 3.12, and 3.11 ends at 0.16: one line for each.
BY_PYTHON = {
    "megatron-core": 'megatron-core==0.16.1; python_version < "3.12"\nmegatron-core==0.19.2; python_version >= "3.12"'
}
NOT_PINNED = {"megatron-orchestrator", "pip", "setuptools", "wheel", "triton"}


def constraints() -> str:
    """One line per installed distribution, sorted; local version labels (`+cpu`) are left out."""
    installed = {dist.name.lower().replace("_", "-"): dist.version.partition("+")[0] for dist in distributions()}
    lines = [
        BY_PYTHON.get(name, f"{name}=={version}")
        for name, version in sorted(installed.items())
        if name not in NOT_PINNED and not name.startswith("nvidia-")
    ]
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "constraints.txt"
    target.write_text(constraints())
    sys.stdout.write(f"{target.name}: {target.read_text().count('==')} versions\n")
