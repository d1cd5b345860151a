"""The test environment keeps its promises (see conftest.py)."""

from __future__ import annotations

import importlib
import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples


@pytest.mark.parametrize("method", ["connect", "connect_ex"])
@pytest.mark.parametrize("host", ["192.0.2.1", "example.invalid"])
def test_a_connection_beyond_loopback_fails_the_test(host: str, method: str) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client,
        pytest.raises(pytest.fail.Exception, match="only loopback is allowed"),
    ):
        getattr(client, method)((host, 80))


def test_loopback_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())


def test_home_is_not_the_users_and_no_job_shows_through() -> None:
    assert Path(os.environ["HOME"]).name.startswith("orchestrator-home-")
    assert Path.home() == Path(os.environ["HOME"])
    assert "WORLD_SIZE" not in os.environ
    of_jobs = {name for name in os.environ if name.startswith(("ORCHESTRATOR_", "SLURM_"))}
    assert {name for name in of_jobs if not name.startswith("ORCHESTRATOR_TEST_")} == set()


def test_examples_are_the_same_whatever_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the constants of a module that another test has imported."""
    if not settings().derandomize:
        pytest.skip("this profile draws other examples each time")
    before = _drawn()
    (tmp_path / "odd_constants.py").write_text(f"ODD = {[LEAST + number for number in range(7, 5000, 700)]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("odd_constants")
    assert _drawn() == before


LEAST = 7 * 10**12


def _drawn() -> list[int]:
    drawn = []

    @given(number=st.integers(LEAST, LEAST + 10**6))
    def draw(number: int) -> None:
        drawn.append(number)

    draw()
    return drawn


@pytest.mark.parametrize(("profile", "most"), [("orchestrator", 400), ("random", 400), ("fast", 10)])
def test_a_number_of_examples_of_a_tests_own_is_for_the_whole_suite(profile: str, most: int) -> None:
    loaded = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        assert (examples(6), examples(400)) == (6, most)
    finally:
        settings.load_profile(loaded)


def test_no_test_says_a_number_of_examples_that_no_profile_reaches() -> None:
    folder, own = Path(__file__).parent, re.compile(r"max_examples[=](?!examples\()")
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if own.search(path.read_text())]
    assert found == ["conftest.py"], "settings(max_examples=examples(N))"
