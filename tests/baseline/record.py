"""Record what every job of jobs.yaml does today, or hold it against what was recorded:

    PYTHONPATH=$PWD/tests python -m baseline.record             writes recorded/
    PYTHONPATH=$PWD/tests python -m baseline.record --compare   writes nothing; prints what differs, and ends with 1

Compared are also what the commands tell of the runs in runs/ (keep.py) and how these go on. NAME... takes those alone
whose names begin so (a kept run's is kept-NAME); --no-training leaves losses out.

A change that should alter nothing is held against recorded/ on the machine that wrote it, where losses are equal to the
last bit. Elsewhere they are nearly (`NEAR` in recording.py): record the version before the change there, with --folder
FOLDER, and compare the changed one with that.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from support.commands import Commands
from support.faults import Ranks

from baseline.continuing import CONTINUED, goes_on, only_run
from baseline.jobs import all_jobs, make_data, write_folder
from baseline.keep import MAKERS
from baseline.packing import kept, unpack
from baseline.place import place
from baseline.readers import told
from baseline.recording import RECORDED, plans_and_scripts, to_text, training


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was recorded, or nothing differs."""
    parser = argparse.ArgumentParser(prog="python -m baseline.record", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--folder", type=Path, default=RECORDED)
    given = parser.parse_args(arguments)
    given.folder.mkdir(exist_ok=True)
    trains, wanted = not given.no_training, tuple(given.names or [""])
    different = 0
    with place() as (folder, ranks):
        write_folder(folder)
        for job in all_jobs():
            if job.name.startswith(wanted):
                path = given.folder / f"{job.name}.json"
                before = path.read_text() if path.exists() else ""
                found = plans_and_scripts(job, folder)
                if job.trains and trains:
                    found |= training(job, ranks, folder)
                elif before:
                    found = {**json.loads(before), **found}
                now = to_text(found) + "\n"
                if given.compare:
                    different += differs(job.name, before, now)
                else:
                    path.write_text(now)
        if given.compare or given.folder != RECORDED:
            commands = Commands()
            for name in MAKERS:
                if f"kept-{name}".startswith(wanted):
                    before, now = reread(name, folder, commands, ranks if trains else None)
                    path = given.folder / f"kept-{name}.json"
                    if not given.compare:
                        path.write_text(now)
                    else:
                        different += differs(f"kept-{name}", path.read_text() if path.exists() else before, now)
            commands.close()
    print(f"{different} differ" if given.compare else f"recorded in {given.folder}")
    return int(different > 0)


def reread(name: str, folder: Path, commands: Commands, ranks: Ranks | None) -> tuple[str, str]:
    """What was told of a kept run and how it went on, and the same now."""
    packed, place = kept(name), folder / f"kept-{name}"
    place.mkdir()
    make_data(place / "data")
    unpack(packed, place)
    now = {"told": told(place)}
    if ranks is not None and name in CONTINUED:
        now["continued"] = goes_on(name, only_run(place), commands, ranks, place)
    return to_text({key: packed[key] for key in now}) + "\n", to_text(now) + "\n"


def differs(name: str, before: str, now: str) -> bool:
    """Whether a text has changed; prints what."""
    lines = difflib.unified_diff(
        before.splitlines(), now.splitlines(), f"{name} recorded", f"{name} now", "", "", 2, ""
    )
    if before != now:
        print("\n".join(lines), flush=True)
    print(f"{name}: {'as recorded' if before == now else 'differs'}", file=sys.stderr, flush=True)
    return before != now


if __name__ == "__main__":
    sys.exit(main())
