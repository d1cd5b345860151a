"""How `ssh` is called: as the user has it, asking nothing."""

from __future__ import annotations

# A host that does not answer is given up after 15 seconds, which is less than it takes to give up the launcher.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    # A connection that others share does not end with its host, and ports can be forwarded by one alone.
    "ControlMaster": "no",
    "ControlPath": "none",
    "ClearAllForwardings": "yes",
}
SSH = ["ssh", "-T", *(word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}"))]
"""The command, without a host."""
