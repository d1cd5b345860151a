"""A browser and a dashboard for tests of the pages.

`visit(path)` opens a page and fails the test where the browser's console shows an error. Screenshots are taken
where ORCHESTRATOR_TEST_SCREENSHOTS names a folder for them. Where there can be no browser these tests are skipped; with
ORCHESTRATOR_TEST_BROWSER=required they fail.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import IO

import pytest
from browser.packages import PROGRAM, what_is_missing
from browser.reviewed import Reviewed, reviewed_in
from browser.waiting import until
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    ViewportSize,
    expect,
    sync_playwright,
)
from support.commands import Commands, Going
from support.faults import Ranks
from support.fixtures import inject
from support.network import unchanged

__all__ = ["inject"]

HERE = Path(__file__).parent
FOLDER = f"{HERE}{os.sep}"
WINDOW: ViewportSize = {"width": 1400, "height": 1000}
PATIENCE = 60.0
"""Seconds that a page, or something in it, may take on a machine that is busy with other things."""
SCREENSHOTS = "ORCHESTRATOR_TEST_SCREENSHOTS"
# No sandbox: containers have none. Nothing is looked up on a network.
_FLAGS = ["--no-sandbox", "--disable-gpu", "--in-process-gpu", "--renderer-process-limit=1", "--disable-quic"]
_FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
# A page of Chromium's own for its address bar, which nobody sees here, would be loaded with every window. A script that
# is compiled while it comes is compiled anew for every page; otherwise what an earlier page has compiled is taken. The
# last such option counts: what else is switched off is what Playwright's would.
_FLAGS += [
    "--disable-features=ScriptStreaming,WebUIOmniboxPopup,WebUIOmniboxAimPopup,AvoidUnnecessaryBeforeUnloadCheckSync,"
    "DestroyProfileOnBrowserClose,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,LensOverlay,MediaRouter,PaintHolding,"
    "ThirdPartyStoragePartitioning,AvoidCorsURLLoaderRestartOnRedirect,TcpPortRandomizationWin,OptimizationHints,"
    "NetworkTimeServiceQuerying,AimEnabled,PreconnectToSearch"
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is in this folder is a test in a browser."""
    for item in items:
        if str(item.path).startswith(FOLDER):
            item.add_marker("browser")
            # The first of them makes the runs that all of them look at.
            item.add_marker(pytest.mark.timeout(600))


class Chromium:
    """A browser for the tests of this folder, and another one after a change of this machine's network: of that it
    hears when it finds the time, and aborts what is being loaded then.
    """

    def __init__(self) -> None:
        self._changes = -1
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._context: BrowserContext | None = None

    def after(self, changes: int) -> BrowserContext:
        """The context in which all tests have their pages: what is the same for all is loaded and compiled once. Of a
        browser that was started after so many changes of the network.
        """
        is_open = self._browser is not None and self._browser.is_connected()
        if self._context is None or not is_open or self._changes != changes:
            self.close()
            self._playwright = sync_playwright().start()
            self._browser, self._changes = self._launched(self._playwright), changes
            # Without motion: a mark that pulses costs as much as the page, for as long as that is open.
            self._context = self._browser.new_context(viewport=WINDOW, reduced_motion="reduce")
            self._context.set_default_timeout(1000 * PATIENCE)
            self._context.new_page()  # its process stays when other pages are closed, and what it has compiled
        return self._context

    def _launched(self, playwright: Playwright) -> Browser:
        """Chromium crashed once on a busy machine before there was a page, which says nothing of ours."""
        program = which(PROGRAM)
        try:
            return playwright.chromium.launch(executable_path=program, args=_FLAGS)
        except Error as error:
            if "browser has been closed" not in str(error):
                raise
            return playwright.chromium.launch(executable_path=program, args=_FLAGS)

    def close(self) -> None:
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        self._browser = self._playwright = self._context = None


_CHROMIUM = pytest.StashKey[Chromium]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CHROMIUM] = Chromium()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Playwright leaves an event loop running meanwhile, which tests elsewhere may not find."""
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        item.config.stash[_CHROMIUM].close()


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config) -> Chromium:
    """The browser, where there can be one."""
    if reason := what_is_missing():
        if os.environ.get("ORCHESTRATOR_TEST_BROWSER") == "required":
            pytest.fail(f"ORCHESTRATOR_TEST_BROWSER=required: {reason}")
        pytest.skip(reason)
    expect.set_options(timeout=1000 * PATIENCE)
    return pytestconfig.stash[_CHROMIUM]


@pytest.fixture(scope="session")
def reviewed(ranks: Ranks, shared_folder: Path) -> Reviewed:
    """Runs of all kinds, made by real training; see reviewed.py. Not to be changed: use `reviewed.copied`."""
    return reviewed_in(shared_folder / "reviewed", ranks)


@dataclass
class Dashboard:
    """A running dashboard. `address` has no slash at its end; `token` is the one that it made by itself."""

    process: Going
    said: IO[str]
    address: str
    runs_dir: Path
    token: str | None = None

    def page(self, path: str) -> str:
        """Where a page lies, for somebody who comes for the first time."""
        if self.token is None:
            return self.address + path
        return f"{self.address}{path}{'&' if '?' in path else '?'}token={self.token}"


@dataclass
class Dashboards:
    """Starts dashboards with the command, and ends them."""

    commands: Commands
    env: dict[str, str]
    started: list[Dashboard] = field(default_factory=list)

    def start(self, runs_dir: Path, *options: str) -> Dashboard:
        """A dashboard of a folder, on a free port, with more options of the command. What it starts itself trains with
        ranks that are forked.
        """
        command = ["dashboard", "--runs-dir", runs_dir, "--port=0", "--json", *options]
        env = {**os.environ, **self.env}
        reading, writing = os.pipe()
        process = self.commands.start(*command, cwd=runs_dir, env=env, out=writing)
        os.close(writing)
        out = os.fdopen(reading)
        said = out.readline()
        assert said, "the dashboard has ended"
        address, _, token = json.loads(said)["address"].partition("/?token=")
        given = any(option.startswith("--token") for option in options)
        made = Dashboard(process, out, address.rstrip("/"), runs_dir, None if given else token or None)
        self.started.append(made)
        return made

    def end(self) -> None:
        """End all of them."""
        for each in self.started:
            each.process.end(PATIENCE)
            each.said.close()


@pytest.fixture(scope="session")
def dashboard_commands() -> Iterator[Commands]:
    """Commands that need not import what a dashboard or a report does."""
    process = Commands("orchestrator.dashboard", "orchestrator.dashboard.report")
    yield process
    process.close()


def forked(ranks: Ranks) -> dict[str, str]:
    """Variables of a dashboard: what it has started is forked, as what that starts in its turn."""
    return {**ranks.for_commands(), "FORKED_TOO": "orchestrator orchestrator.launch orchestrator.sweeps"}


@pytest.fixture(scope="module")
def dashboards(dashboard_commands: Commands, ranks: Ranks) -> Iterator[Dashboards]:
    made = Dashboards(dashboard_commands, forked(ranks))
    yield made
    made.end()


@pytest.fixture(scope="session")
def reviewing(dashboard_commands: Commands, ranks: Ranks, reviewed: Reviewed) -> Iterator[Dashboard]:
    """A dashboard of the runs, as it is by default."""
    started = Dashboards(dashboard_commands, forked(ranks))
    yield started.start(reviewed.runs_dir)
    started.end()


@dataclass
class Visitor:
    """A person at a page. `problems`: what the browser's console and the page's scripts complained of."""

    page: Page
    folder: Path | None = None
    """Of its screenshots."""
    problems: list[str] = field(default_factory=list)

    def __call__(self, address: str) -> Page:
        """Open a page."""
        self.page.goto(address)
        return self.page

    def narrow(self) -> None:
        """Look at the page on a phone, where nothing but tables may have to be scrolled sideways."""
        self.page.set_viewport_size({"width": 390, "height": 800})
        # Charts take their new width a moment later.
        until(self.page, "document.documentElement.scrollWidth <= 390")

    def chart_fills(self, most: float = 44) -> None:
        """The first chart is as wide as the page, but for `most` pixels of margins."""
        until(
            self.page,
            """most => {
                const drawn = document.querySelector(".chart .main-svg");
                if (drawn === null) return false;  // a page that has just come draws a moment later
                const wide = drawn.getBoundingClientRect();
                const page = document.querySelector("main").getBoundingClientRect();
                return wide.right <= page.right && wide.width >= page.width - most;
            }""",
            argument=most,
        )

    def photograph(self, name: str) -> None:
        """Keep how the page looks now, where somebody wants to see it."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self.folder / f"{name}.png", full_page=True)

    def forget(self) -> None:
        """What the page has stored in the browser."""
        if not self.page.url.startswith("about:"):
            self.page.evaluate("localStorage.clear()")

    def listen(self) -> None:
        """Hear what goes wrong from now on."""

        def hear(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.problems.append(f"{message.type}: {message.text}")

        self.page.on("console", hear)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))


@pytest.fixture
def context(chromium: Chromium, shared_folder: Path) -> Iterator[BrowserContext]:
    """The browser's context, while this machine's network stays as it is, without what earlier tests left in it."""
    with unchanged(shared_folder) as changes:
        found = chromium.after(changes)
        yield found
        found.clear_cookies()


@pytest.fixture
def visitor(context: BrowserContext, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """A person with a large window; `visitor.page.set_viewport_size` makes it that of a phone."""
    kept = os.environ.get(SCREENSHOTS)
    folder = Path(kept) / re.sub(r"\W+", "-", request.node.name) if kept else None
    made = Visitor(context.new_page(), folder)
    made.listen()
    yield made
    try:
        made.forget()
    finally:
        made.page.close()
    assert made.problems == []
