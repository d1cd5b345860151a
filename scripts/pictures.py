"""Write docs/images/: pages of the dashboard as SVG, drawn by a real browser of the runs of `make quickstart`.

    make quickstart pictures

A picture is text: boxes, words and charts at the places where the browser put them. It needs no font and no script,
and the name of this machine, of its user and of its folders are replaced.
"""

from __future__ import annotations

import getpass
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / ".quickstart" / "runs"
IMAGES = ROOT / "docs" / "images"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDTH = 1200
_SIGHT = 5000
"""Pixels of the window: charts in sight draw themselves."""
DRAW = (Path(__file__).parent / "page_to_svg.js").read_text()


def main() -> None:
    """Draw the page of the quickstart's run, and its first chart by itself."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"no browser: one of {', '.join(BROWSERS)} is needed; `make install-browser` installs the first")
    run = max(RUNS.glob("quickstart/*/events.jsonl"), key=lambda path: path.stat().st_mtime, default=None)
    if run is None:
        sys.exit("no run of the quickstart: `make quickstart` makes one")
    IMAGES.mkdir(exist_ok=True)
    with dashboard() as address, sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = launched.new_page(viewport={"width": WIDTH, "height": _SIGHT}, color_scheme="light", bypass_csp=True)
        page.goto(f"{address}/runs/quickstart/{run.parent.name}")
        # The charts draw themselves when they have their points.
        page.wait_for_function(
            "[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))"
        )
        write("dashboard.svg", drawn(page, "body", height=840))
        write("quickstart.svg", drawn(page, ".chart", height=840))
        launched.close()


@contextmanager
def dashboard() -> Iterator[str]:
    """The address of a dashboard of the quickstart's runs, which ends with the block."""
    command = [sys.executable, "-m", "orchestrator", "dashboard", "--runs-dir", str(RUNS), "--port=0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"].rstrip("/")
        finally:
            process.terminate()


def drawn(page: Page, selector: str, *, height: int) -> str:
    """What the browser shows of the first such element, at most `height` pixels of it, as SVG."""
    return str(page.evaluate(DRAW, [selector, height]))


def write(name: str, svg: str) -> None:
    """Without what only this machine knows."""
    for known, instead in (
        (str(ROOT), "~/megatron-orchestrator"),
        (socket.gethostname(), "laptop"),
        (getpass.getuser(), "you"),
    ):
        svg = re.sub(rf"(?<![\w-]){re.escape(known)}(?![\w-])", instead, svg)
    (IMAGES / name).write_text(svg)
    sys.stdout.write(f"{(IMAGES / name).relative_to(ROOT)}: {len(svg) / 1024:.0f} KiB\n")


if __name__ == "__main__":
    main()
