"""SLURM's commands as small scripts on PATH that say what the real ones were heard to say."""

from __future__ import annotations

from pathlib import Path

SCRIPT = """\
#!/bin/sh
printf '%s\\037' "$@" >> '{folder}/{name}.calls'; echo >> '{folder}/{name}.calls'
/usr/bin/env > '{folder}/{name}.environment'
{delay}
/bin/cat '{folder}/{name}.out'
/bin/cat '{folder}/{name}.err' >&2
exit {code}
"""


class FakeSlurm:
    """Commands that are on PATH once they have something to say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)

    def says(self, name: str, out: str = "", err: str = "", code: int = 0, delay: str = "") -> None:
        """From now on the command `name` writes this and exits so."""
        (self.folder / f"{name}.out").write_text(out)
        (self.folder / f"{name}.err").write_text(err)
        path = self.bin / name
        path.write_text(SCRIPT.format(folder=self.folder, name=name, code=code, delay=delay))
        path.chmod(0o755)

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of each call so far."""
        path = self.folder / f"{name}.calls"
        lines = path.read_text().split("\037\n")[:-1] if path.exists() else []
        return [line.split("\037") for line in lines]

    def environment(self, name: str) -> dict[str, str]:
        """The environment of the last call."""
        lines = (self.folder / f"{name}.environment").read_text().splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}
