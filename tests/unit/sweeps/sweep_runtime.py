"""The fake training program of tests/unit/launch, failing for some cells: those whose learning rate is named in
FAKE_BAD_LR, until the file FAKE_MENDED exists.
"""

import json
import os
import sys
from pathlib import Path

lr = json.loads(Path(sys.argv[1], "resolved.json").read_text())["optimizer"]["lr"]
if str(lr) in os.environ.get("FAKE_BAD_LR", "").split(",") and not Path(os.environ["FAKE_MENDED"]).exists():
    os.environ["FAKE_END"] = "raise@7"

import fake_runtime  # noqa: E402

sys.exit(fake_runtime.main())
