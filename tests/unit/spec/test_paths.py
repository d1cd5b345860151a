"""Paths in a spec are taken as they are written; what a shell would replace in them is refused."""

from __future__ import annotations

import pytest

from orchestrator.errors import SpecError
from orchestrator.spec.loading import load_text

JOB = """
name: x
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64}
batch: {micro_batch_size: 1, global_batch_size: 1}
optimizer: {lr: 1e-3}
schedule: {train_iters: 1}
data: {blend: [data/mine]}
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/homes/me")
    monkeypatch.setenv("FAST", "/fast")
    monkeypatch.delenv("GONE", raising=False)


@pytest.mark.parametrize(
    ("setting", "field", "message", "hint"),
    [
        ("launch.runs_dir=~/runs", "launch.runs_dir", "~ in ~/runs", "write /homes/me/runs"),
        ("launch.runs_dir=$FAST/runs", "launch.runs_dir", "$FAST in $FAST/runs", "write /fast/runs"),
        ("data.cache_dir=/a/$GONE", "data.cache_dir", "$GONE in /a/$GONE", "write the whole path"),
        ("data.blend=[~/mine]", "data.blend[0].path", "~ in ~/mine", "write /homes/me/mine"),
        ("data.blend=[a, {path: b, text: ~/c}]", "data.blend[1].text", "~ in ~/c", "write /homes/me/c"),
    ],
)
def test_what_a_shell_would_replace(setting: str, field: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_text(JOB, overrides=[setting])
    (problem,) = refused.value.problems
    assert problem.paths[0] == field
    assert problem.message == f"{message} is not replaced: a path stands for itself"
    assert problem.hint == hint


@pytest.mark.parametrize("path", ["/a~b/c", "a/~", "~x y", "a/$1", "/a b/$c", "costs$", "data é/mine"])
def test_other_names_are_names(path: str) -> None:
    assert load_text(JOB, overrides=[f"launch.runs_dir={path}"]).job.launch.runs_dir == path
