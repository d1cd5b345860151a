"""Which sizes of images a run, or a job that begins with imported weights, may change."""

from __future__ import annotations

import pytest

from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.spec.pretrained import other_network

SECTIONS = "batch: {micro_batch_size: 1, num_micro_batches: 8}, data: {random_tokens: true}, optimizer: {lr: 1e-4}"
QWEN, LLAVA = "qwen2.5-vl-3b", "llava1.5-7b"


def job(preset: str, vision: str) -> JobSpec:
    return load_text(
        f"{{name: x, model: {{preset: {preset}, vision: {vision}}}, {SECTIONS}, schedule: {{train_iters: 1}}}}"
    ).job


@pytest.mark.parametrize(
    ("preset", "old", "new", "kinds"),
    [
        (QWEN, "{image_size: 980}", "{image_size: 1008}", {"trajectory"}),
        (QWEN, "{image_size: 980}", "{image_size: 980, native_resolution: {smallest_image_size: 56}}", {"safe"}),
        (
            QWEN,
            "{image_size: 1008, native_resolution: {merge_size: 2}}",
            "{image_size: 1008, native_resolution: {merge_size: 4}}",
            {"forbidden"},
        ),
        (LLAVA, "{image_size: 336}", "{image_size: 448}", {"forbidden"}),
    ],
)
def test_what_another_size_means(preset: str, old: str, new: str, kinds: set[str]) -> None:
    """An encoder of images of any size has no table of positions."""
    before, after = job(preset, old), job(preset, new)
    assert {change.kind for change in diff_jobs(before, after)} == kinds
    assert bool(other_network(before, after)) is ("forbidden" in kinds)
