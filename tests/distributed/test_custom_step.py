"""The keyword-weighted loss of Accelerate's documentation, as a training step of a user's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import UNSAVED, Ranks
from support.training import layout, logs, losses, make_run, tiny_job, values

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "training.md"
KEYWORDS = next(code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "Keyword" in code)
"""The class as the page has it."""
STEPS = 5
LONG = {"seq_length": 64}


def as_documented(inputs: Any, loss_mask: Any, output_tensor: Any, keytoken_ids: list[int], alpha: float) -> Any:
    """Accelerate's `loss_func`, line by line, without its sum over replicas."""
    batch_size, seq_length = output_tensor.shape
    loss = output_tensor.float().view(-1) * loss_mask.view(-1).float()
    loss_per_sample = loss.view(batch_size, seq_length).sum(axis=1)
    loss_mask_per_sample = loss_mask.view(batch_size, seq_length).sum(axis=1)
    loss_per_sample = loss_per_sample / loss_mask_per_sample
    weights = torch.stack([(inputs == kt).float() for kt in keytoken_ids]).sum(axis=[0, 2])
    weights = 1.0 + alpha * weights
    return (loss_per_sample * weights).mean()


def test_it_is_the_loss_of_the_documentation() -> None:
    names: dict[str, Any] = {}
    exec(KEYWORDS, names)
    torch.manual_seed(1)
    tokens, losses_of_tokens = torch.randint(0, 12, (6, 40)), torch.rand(6, 40)
    mask = (torch.rand(6, 40) > 0.3).float()
    arguments = {"keytoken_ids": [1, 5, 7], "alpha": 0.25}
    batch = {"tokens": tokens, "loss_mask": mask}
    [(name, part)] = names["KeywordWeightedLoss"](**arguments).loss(losses_of_tokens, batch).items()
    assert name == "lm"
    torch.testing.assert_close(part.total / part.count, as_documented(tokens, mask, losses_of_tokens, **arguments))


@pytest.fixture
def in_folder(tmp_path: Path, inject: Callable[[str], Path]) -> Path:
    """Ranks that work in a folder where the user's package is."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "steps.py").write_text(KEYWORDS)
    return inject(f"import runpy\nos.chdir({str(tmp_path)!r})\nrunpy.run_path({str(UNSAVED)!r})")


def test_the_keyword_weighted_loss(ranks: Ranks, tmp_path: Path, in_folder: Path) -> None:
    """In one process, under TP2 and under PP2 the same losses, which are higher than those of the plain loss."""
    arguments = {"keytoken_ids": [1, 2, 3, 5, 8, 13, 21, 34], "alpha": 0.25}
    runtime = {"train_step": "my_package.steps:KeywordWeightedLoss", "train_step_arguments": arguments}
    sections = {
        **{"model": LONG, "runtime": runtime, "schedule": {"train_iters": STEPS}},
        "evaluation": {"eval_interval": STEPS},
    }
    found = {}
    for name, parallelism in {"one": layout(), "tp2": layout(tp=2), "pp2-dp2": layout(pp=2, dp=2)}.items():
        job = tiny_job(name, **sections, parallelism=parallelism)
        run = ranks.must_train(make_run(tmp_path, job), job, inject=in_folder)
        found[name] = (losses(run), values(run, "validation/loss"))
    for name in ("tp2", "pp2-dp2"):
        for ours, alone in zip(found[name], found["one"], strict=True):
            assert ours == pytest.approx(alone, rel=1e-5)
    plain = tiny_job("plain", model=LONG, schedule={"train_iters": STEPS})
    unweighted = ranks.losses_of(plain, tmp_path / "plain")
    # Of 64 tokens of 250 about two are key tokens, so a sequence counts for about 1.5.
    assert all(found["one"][0][step] > 1.2 * unweighted[step] for step in unweighted)


HALVES = """
from orchestrator.runtime.steps.base import Part
from orchestrator.runtime.steps.gpt import NextToken


class Weighted(NextToken):
    def loss(self, output, batch):
        part = super().loss(output, batch)["lm"]
        return {"lm": Part(part.total * 0.49, part.count * 0.49)}
"""


def test_a_count_that_is_not_whole(ranks: Ranks, tmp_path: Path, in_folder: Path) -> None:
    """Averaged by itself a micro-batch may count as it likes; in a loss per token it is an error of all ranks."""
    (tmp_path / "my_package" / "steps.py").write_text(HALVES)
    sections = {"schedule": {"train_iters": 3}, "parallelism": layout(pp=2)}
    weighted = tiny_job("weighted", runtime={"train_step": "my_package.steps:Weighted"}, **sections)
    run = ranks.must_train(make_run(tmp_path, weighted), weighted, inject=in_folder)
    assert losses(run) == pytest.approx(ranks.losses_of(tiny_job("plain", **sections), tmp_path / "plain"), rel=1e-6)

    job = weighted.model_copy(
        update={"name": "per-token", "data": weighted.data.model_copy(update={"eod_mask_loss": True})}
    )
    run = make_run(tmp_path, job)
    assert ranks.start(run, job, inject=in_folder).wait() == 1
    records = [json.loads(path.read_text()) for path in sorted((run.path / "exits" / "test").glob("*.json"))]
    assert [record["cause"] for record in records] == ["user_error"] * 2, logs(run)
    assert all(
        "a part lm whose count is NaN or, in a loss per token, not a whole number" in record["message"]
        for record in records
    )
    assert not losses(run)


def test_what_is_wrong_with_it_ends_every_rank_as_a_users_error(ranks: Ranks, tmp_path: Path, in_folder: Path) -> None:
    job = tiny_job("wrong", runtime={"train_step": "my_package.steps:Missing"}, parallelism=layout(dp=2))
    run = make_run(tmp_path, job)
    assert ranks.start(run, job, inject=in_folder).wait() == 1
    records = [json.loads(path.read_text()) for path in sorted((run.path / "exits" / "test").glob("*.json"))]
    assert records, logs(run)
    for record in records:
        assert record["cause"] == "user_error"
        assert "has no class Missing; it has" in record["message"]
    assert not run.metrics_file.exists()
