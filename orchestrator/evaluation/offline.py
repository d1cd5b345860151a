"""Imported before lm-eval, whose libraries read these variables when they are imported: nothing is downloaded."""

from __future__ import annotations

import os

for _name in (
    "HF_DATASETS_OFFLINE",
    "HF_EVALUATE_OFFLINE",
    "HF_HUB_OFFLINE",
    # It would fork a pool of processes for standard errors, out of a process that has threads and sockets of its own.
    "DISABLE_MULTIPROC",
):
    os.environ.setdefault(_name, "1")
