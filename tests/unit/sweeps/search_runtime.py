"""The fake training program of tests/unit/launch with a planted optimum: the loss falls to the distance, in orders of
magnitude, of the learning rate from 1e-3. Those in FAKE_BAD_LR fail at their first step, until the file FAKE_MENDED
exists.
"""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

job = json.loads(Path(sys.argv[1], "resolved.json").read_text())
rate = str(job["optimizer"]["lr"])
if rate in os.environ.get("FAKE_BAD_LR", "").split(",") and not Path(os.environ["FAKE_MENDED"]).exists():
    os.environ["FAKE_END"] = "raise@1"

import fake_runtime  # noqa: E402


def planted(job: dict[str, Any], loss: float) -> float:
    """The loss after a step."""
    distance = abs(math.log10(job["optimizer"]["lr"]) + 3)
    return loss + 0.2 * (distance - loss)


fake_runtime.next_loss = planted
sys.exit(fake_runtime.main())
