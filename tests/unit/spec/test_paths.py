"""Paths in a spec are taken as they are written; what a shell would replace in them is refused."""

from __future__ import annotations

from typing import Any

import pytest

REPLACED_BY_A_SHELL = {
    "launch.runs_dir=~/runs": "launch.runs_dir",
    "launch.runs_dir=$FAST/runs": "launch.runs_dir",
    "data.cache_dir=/a/$GONE": "data.cache_dir",
    "data.blend=[~/mine]": "data.blend[0].path",
    "data.blend=[a, {path: b, text: ~/c}]": "data.blend[1].text",
}


@pytest.mark.parametrize("setting", REPLACED_BY_A_SHELL)
def test_what_a_shell_would_replace(small: Any, setting: str) -> None:
    assert small.refused(setting) == [f"plain_paths {REPLACED_BY_A_SHELL[setting]}"]


@pytest.mark.parametrize("path", ["/a~b/c", "a/~", "~x y", "a/$1", "/a b/$c", "costs$", "data é/mine"])
def test_other_names_are_names(small: Any, path: str) -> None:
    assert small.job(f"launch.runs_dir={path}").launch.runs_dir == path
