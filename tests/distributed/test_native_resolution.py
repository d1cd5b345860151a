"""A decoder that sees images of any size trains on conversations whose images differ. Layouts: test_matrix.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import WEIGHTS_ALONE, Ranks
from support.matrix import FAMILIES
from support.pictures import make_album, talk, written
from support.trained_weights import weights_apart
from support.training import largest_difference, layout, losses, make_run, tiny_job

from orchestrator.data.missing_datasets import prepare
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains at two layouts")]


def trained(ranks: Ranks, folder: Path, chats: Path, name: str, parallelism: dict[str, Any]) -> RunDir:
    vision = {**FAMILIES["native"]["vision"], "image_size": 16}
    blend = [{"path": str(chats.parent / "talks"), "text": str(chats)}]
    job: JobSpec = tiny_job(
        name,
        model={**FAMILIES["native"], "vocab_size": 261, "vision": vision},
        parallelism=parallelism,
        data={"blend": blend, "random_tokens": False, "split": "1,0,0", "chat": {"packing": False}},
        schedule={"train_iters": 3, "lr_warmup_iters": 0},
        optimizer={"adam_eps": 1e-6},
    )
    prepare(job.data, workers=1, vision=job.model.vision, tell=lambda said: None)
    return ranks.must_train(make_run(folder, job), job, inject=WEIGHTS_ALONE)


def test_images_that_differ_in_size(ranks: Ranks, tmp_path: Path) -> None:
    """Some sequences have none, one or two, and ranks of two replicas other ones, as one process has."""
    album = make_album(tmp_path)
    given = [[], ["a.jpg"], ["more/f.png"], ["d.png"], ["b.png", "a.jpg"], [], ["c.jpg"], ["more/e.jpg", "d.png"]]
    lines = [
        talk("<image>" * len(each), f"{number}", images=each) if each else talk("a", "b")
        for number, each in enumerate(given)
    ]
    chats = written(album, *lines)
    one = trained(ranks, tmp_path / "one", chats, "one", {})
    four = trained(ranks, tmp_path / "four", chats, "four", layout(tp=2, pp=2, sequence_parallel=True))
    two = trained(ranks, tmp_path / "two", chats, "two", layout(dp=2))
    for run in (four, two):
        assert largest_difference(losses(one), losses(run)) < 1e-5
        assert weights_apart(one, run) == {}
