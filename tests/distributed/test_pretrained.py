"""Starting from the weights of another run's checkpoint: any layout, fresh optimizer, clear errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import events, layout, losses, make_run, tiny_job, values

from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.description import describe

VALIDATION = {"eval_iters": 2, "eval_at_end": True, "eval_interval": 100}


@pytest.fixture(scope="module")
def source(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Four steps of a gated model whose output layer is its own, under TP2."""
    job = tiny_job(
        "source",
        model=MODEL,
        schedule={"train_iters": 4},
        evaluation=VALIDATION,
        parallelism=layout(tp=2),
    )
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), job), job)


MODEL = {"activation": "swiglu", "normalization": "RMSNorm", "untie_embeddings_and_output_weights": True}


def tuned(name: str, source: RunDir | str, model: dict[str, Any] | None = None, **sections: Any) -> Any:
    """A job that starts from those weights, with another padding of the vocabulary."""
    start = {"pretrained": str(source.path if isinstance(source, RunDir) else source)}
    return tiny_job(
        name,
        model={**MODEL, "make_vocab_size_divisible_by": 5, **(model or {})},
        evaluation={**VALIDATION, "eval_at_start": True},
        **{"schedule": {"train_iters": 3}, "checkpoint": start, **sections},
    )


def test_weights_come_from_there_and_nothing_else_does(ranks: Ranks, tmp_path: Path, source: RunDir) -> None:
    """Under another layout, by the path of a checkpoint and by a name: the source's last loss is the first one."""
    checkpoint = committed(source)[-1].path
    alone = tuned("alone", checkpoint)
    run = ranks.must_train(make_run(tmp_path, alone), alone)
    [end] = values(source, "validation/loss").values()
    assert values(run, "validation/loss")[0] == pytest.approx(end, rel=1e-5)
    assert list(losses(run)) == [1, 2, 3]
    [event] = events(run, "pretrained")
    assert (event["checkpoint"], event["from_run"], event["from_iteration"]) == (str(checkpoint), "source/run", 4)
    assert describe(run).tags["orchestrator.pretrained_run"] == "source/run"

    spread = tuned("spread", "source", parallelism=layout(pp=2), precision={"dtype": "fp32"})
    beside = ranks.must_train(make_run(source.path.parent.parent, spread), spread)
    assert losses(beside) == pytest.approx(losses(run), rel=2e-5)

    longer = tuned("alone", checkpoint, schedule={"train_iters": 5})
    make_run(tmp_path, longer)
    ranks.must_train(run, longer, launch_id="second")
    assert list(losses(run)) == [1, 2, 3, 4, 5]
    assert len(events(run, "pretrained")) == len(events(run, "resumed")) == 1


def test_a_relative_path_leads_from_the_folder_of_the_launch(
    ranks: Ranks, tmp_path: Path, source: RunDir, inject: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of a run with a copy of the code work in that copy."""
    (tmp_path / "project").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "weights").symlink_to(source.path)
    monkeypatch.chdir(tmp_path / "project")
    job = tuned("copied", "../weights", schedule={"train_iters": 1, "lr_warmup_iters": 0})
    run = create_run(job, "", tmp_path / "runs", CodeState({}, b""))
    monkeypatch.undo()
    deep = tmp_path / "copy" / "of" / "code"
    ranks.must_train(run, job, inject=inject(f"os.makedirs({str(deep)!r}); os.chdir({str(deep)!r})"))
    assert events(run, "pretrained")[0]["from_iteration"] == 4


def test_the_main_copy_of_bf16_weights_is_theirs_too(ranks: Ranks, tmp_path: Path, source: RunDir) -> None:
    """Else the first update would bring the initial weights back."""
    job = tuned("bf16", source, precision={"dtype": "bf16"}, optimizer={"lr": 1e-9}, parallelism=layout(dp=2))
    run = ranks.must_train(make_run(tmp_path, job), job)
    before, after = values(run, "validation/loss").values()
    assert before == pytest.approx(next(iter(values(source, "validation/loss").values())), rel=0.02)
    assert after == pytest.approx(before, rel=0.002)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"num_layers": 5}, "is (2, 32) there and (5, 32) here"),
        ({"position_embedding_type": "learned_absolute"}, "it lacks embedding.position_embeddings.weight"),
        ({"add_bias_linear": False}, "it has, and the model has not, decoder.layers.mlp.linear_fc1.bias"),
        ({"num_attention_heads": 2}, "model.num_attention_heads is 4 there and 2 here"),
        ({"vocab_size": 251}, "has 250 tokens, and this job's has 251"),
    ],
    ids=["more-layers", "positions", "no-biases", "heads", "vocabulary"],
)
def test_other_weights_are_refused(
    ranks: Ranks, tmp_path: Path, source: RunDir, model: dict[str, Any], said: str
) -> None:
    alone = shutil.copytree(committed(source)[-1].path, tmp_path / "alone")  # what it holds it says itself
    job = tuned("other", str(alone), model)
    run = make_run(tmp_path, job)
    assert ranks.start(run, job).wait() == 1
    record = json.loads(run.exit_record("test", 0).read_text())
    assert record["cause"] == "user_error"
    assert said in record["message"]
    assert said in (log := run.rank_log(0).read_text())
    assert "Traceback" not in log


def test_a_place_without_a_checkpoint_is_a_users_error(ranks: Ranks, tmp_path: Path) -> None:
    job = tuned("lost", "nowhere", parallelism=layout(dp=2))
    run = make_run(tmp_path, job)
    assert ranks.start(run, job).wait() == 1
    record = json.loads(run.exit_record("test", 0).read_text())
    assert record["cause"] == "user_error"
    assert f"no checkpoint and no run at {Path('nowhere').absolute()} and {tmp_path / 'nowhere'}" in record["message"]
