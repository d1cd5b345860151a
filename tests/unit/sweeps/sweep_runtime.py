"""The fake training program of tests/unit/launch, failing for some cells, until the file FAKE_MENDED exists: those
whose learning rate is named in FAKE_BAD_LR, or "learning rate/seed" in FAKE_BAD_CELLS.
"""

import json
import os
import sys
from pathlib import Path

job = json.loads(Path(sys.argv[1], "resolved.json").read_text())
rate, cell = str(job["optimizer"]["lr"]), f"{job['optimizer']['lr']}/{job['runtime']['seed']}"
bad = rate in os.environ.get("FAKE_BAD_LR", "").split(",") or cell in os.environ.get("FAKE_BAD_CELLS", "").split(",")
if bad and not Path(os.environ["FAKE_MENDED"]).exists():
    os.environ["FAKE_END"] = "raise@7"

import fake_runtime  # noqa: E402

sys.exit(fake_runtime.main())
