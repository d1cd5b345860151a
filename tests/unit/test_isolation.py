"""What a test leaves behind in its process, the next one does not see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def program_that_enters_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    os.chdir(tmp_path_factory.mktemp("entered"))
    return Path.cwd()


def test_a_fixture_enters_a_folder(program_that_enters_a_folder: Path) -> None:
    assert Path.cwd() == program_that_enters_a_folder


def test_the_next_test_begins_where_all_do(pytestconfig: pytest.Config) -> None:
    assert Path.cwd() == pytestconfig.rootpath
    os.chdir("/")


def test_and_so_does_the_one_after(pytestconfig: pytest.Config) -> None:
    assert Path.cwd() == pytestconfig.rootpath
