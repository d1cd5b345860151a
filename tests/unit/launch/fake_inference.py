"""An inference program that prints what it was asked: `-m fake_inference RUN_DIR …`."""

import os
import sys

if "--prompt=too long" in sys.argv:
    sys.stderr.write("error: ask for at most 7 new tokens\n")
    sys.exit(2)
if os.environ["RANK"] == "0":
    if "--prompt=fail" in sys.argv:
        raise RuntimeError("no such tokenizer")
    print(" ".join(sys.argv[1:]), os.environ["WORLD_SIZE"], "MASTER_ADDR" in os.environ)
