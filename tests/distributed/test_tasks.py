"""A BERT fine-tuned on made-up MNLI and RACE: it learns, equals one process at every layout, and resumes as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.evaluating import evaluate, moved
from support.examples import write_mnli, write_race
from support.faults import UNSAVED, WEIGHTS_ALONE, CommandLine, Ranks
from support.trained_together import TrainedTogether, selected
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, file_facts
from orchestrator.run_directory.results.record import results_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each job trains on real ranks")]

STEPS = 5
MODEL: dict[str, Any] = {
    **{"architecture": "bert", "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 24},
    **{"position_embedding_type": "learned_absolute", "vocab_size": 300, "init_method_std": 0.1},
}
LAYOUTS = {
    "tp2-sp": layout(tp=2, sequence_parallel=True),
    "pp2": layout(pp=2),
    "dp2": layout(dp=2),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A `task` section for each task. The sets for validation are no multiple of any batch."""
    folder = tmp_path_factory.mktemp("files")
    mnli = {
        "train": str(write_mnli(folder / "train.tsv", 60)),
        "validation": [str(write_mnli(folder / f"dev_{seed}.tsv", size, seed)) for seed, size in ((2, 13), (3, 8))],
    }
    race = {
        "train": [str(write_race(folder / "train/middle", 24)), str(write_race(folder / "train/high", 6, seed=2))],
        "validation": str(write_race(folder / "dev", 7, seed=3)),
    }
    return {"mnli": {"name": "mnli", **mnli}, "race": {"name": "race", **race}}


def task_job(name: str, task: dict[str, Any], **sections: Any) -> JobSpec:
    given = {
        "task": task,
        "data": {"random_tokens": False},
        "schedule": {"train_iters": STEPS, "lr_warmup_iters": 1},
        "evaluation": {"eval_interval": STEPS, "eval_iters": 10},
        **sections,
    }
    return tiny_job(name, **{**given, "model": {**MODEL, **sections.get("model", {})}})


@pytest.fixture(scope="module")
def reference(
    ranks: Ranks, files: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunDir]:
    """One process's run of each task."""
    jobs = {name: task_job(name, task) for name, task in files.items()}
    trained = TrainedTogether(ranks, tmp_path_factory.mktemp("reference"), jobs, WEIGHTS_ALONE)
    return {name: trained[name] for name in jobs}


@pytest.fixture(scope="module")
def spread(
    request: pytest.FixtureRequest,
    ranks: Ranks,
    files: dict[str, dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> TrainedTogether[str]:
    """The run at each layout."""
    names = selected(request, "name")
    jobs = {name: task_job(name, files["mnli"], parallelism=LAYOUTS[name]) for name in names}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("spread"), jobs, UNSAVED)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(
    name: str, spread: TrainedTogether[str], reference: dict[str, RunDir], files: dict[str, dict[str, Any]]
) -> None:
    """Those of MNLI; RACE's are in test_matrix.py. Accuracies are equal to the last digit: they are counted, over every
    example that is held out and no other."""
    job = task_job(name, files["mnli"], parallelism=LAYOUTS[name])
    run, alone = spread[name], reference["mnli"]
    for key in ("train/loss", "validation/loss", "validation/dev_2.tsv/loss", "validation/dev_3.tsv/loss"):
        assert largest_difference(values(alone, key), values(run, key)) < 1e-5, key
    for key in ("train/accuracy", "validation/accuracy"):
        assert values(alone, key) == values(run, key)
    assert largest_difference(values(alone, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4
    [started] = events(run, "started")
    assert started["parameters"] == parameters(job, vocabulary(job).padded_size).per_rank[0].parameters


def test_evaluation_counts_each_example_once(reference: dict[str, RunDir]) -> None:
    """13 and 8 examples of MNLI in batches of eight, 14 questions of RACE: sums over all of them, by themselves and
    together."""
    [(_, together)] = values(reference["mnli"], "validation/accuracy").items()
    [(_, first)] = values(reference["mnli"], "validation/dev_2.tsv/accuracy").items()
    [(_, second)] = values(reference["mnli"], "validation/dev_3.tsv/accuracy").items()
    assert together == pytest.approx((13 * first + 8 * second) / 21, rel=1e-12)
    [(_, questions)] = values(reference["race"], "validation/accuracy").items()
    assert questions * 14 == pytest.approx(round(questions * 14), abs=1e-9)
    assert not values(reference["race"], "validation/perplexity")
    assert (
        "mnli: 60 examples, 0.67 epochs; 21 for validation" in (reference["mnli"].logs / "rank-00000.log").read_text()
    )


def test_a_checkpoint_is_measured_as_in_training(
    ranks: Ranks,
    orchestrator: CommandLine,
    reference: dict[str, RunDir],
    files: dict[str, dict[str, Any]],
    tmp_path: Path,
) -> None:
    """`evaluate` finds on each set, by itself, what the training's own evaluation found, at another layout too."""
    race = files["race"]["validation"]
    job = task_job("race", files["race"], parallelism=LAYOUTS["pp2"])
    asked = [EvaluationRequest("race", "race/dev", race, {}, [file_facts(Path(race))])]
    [chosen] = evaluate(ranks, moved(reference["race"], tmp_path, job), job, asked, tmp_path / "out")
    assert chosen.counts["examples"] == 14
    # By the command, at TP2, on the sets that the job names.
    run = reference["mnli"]
    said = orchestrator("evaluate", run.path, "--tensor-model-parallel-size", "2")
    assert said.code == 0, said.err
    results = {result.name: result for result in results_of(run)}
    assert sorted(results) == ["mnli/dev_2.tsv", "mnli/dev_3.tsv"]
    assert {result.setting["tensor_model_parallel_size"] for result in results.values()} == {2}
    assert "mnli/dev_2.tsv  5          accuracy" in said.out
    found = {"dev_2.tsv/": results["mnli/dev_2.tsv"], "dev_3.tsv/": results["mnli/dev_3.tsv"], "": chosen}
    for name, result in found.items():
        for metric in ("accuracy", "loss"):
            [trained] = values(reference[result.task], f"validation/{name}{metric}").values()
            assert result.metrics[metric].value == pytest.approx(trained, rel=1e-5), (name, metric)


def test_it_learns_from_a_masked_language_model(
    ranks: Ranks, files: dict[str, dict[str, Any]], real_sentences: str, tmp_path: Path
) -> None:
    """Under TP2 from weights of one process: the trunk is theirs, the head is fresh; and what is learned is read again,
    head and all, under PP2."""
    masked = {"data": {"blend": [{"path": real_sentences}], "random_tokens": False, "split": "100,0,0"}}
    source = tiny_job("source", model=MODEL, schedule={"train_iters": 1, "lr_warmup_iters": 0}, **masked)
    ranks.must_train(make_run(tmp_path, source), source, inject=WEIGHTS_ALONE)
    learning = {
        "schedule": {"train_iters": 40, "lr_warmup_iters": 4},
        "optimizer": {"lr": 5e-3},
        "batch": {"micro_batch_size": 16, "global_batch_size": 16},
        "evaluation": {"eval_interval": 40, "eval_iters": 10, "eval_at_start": True},
        "checkpoint": {"pretrained": "source"},
    }
    job = task_job("tuned", files["mnli"], **learning, parallelism=layout(tp=2))
    run = ranks.must_train(make_run(tmp_path, job), job, inject=WEIGHTS_ALONE)
    [event] = events(run, "pretrained")
    assert (event["from_run"], event["fresh"]) == ("source/run", ["the head of the task"])
    assert "fresh: the head of the task" in (run.logs / "rank-00000.log").read_text()
    accuracy = values(run, "validation/accuracy")
    assert accuracy[0] < 0.7
    assert accuracy[40] > 0.9
    assert values(run, "train/accuracy")[40] > 0.9

    short = {**learning, "schedule": {"train_iters": 1, "lr_warmup_iters": 0}}
    again = task_job(
        "again", files["mnli"], **{**short, "checkpoint": {"pretrained": "tuned"}}, parallelism=layout(pp=2)
    )
    moved = ranks.must_train(make_run(tmp_path, again), again, inject=UNSAVED)
    assert values(moved, "validation/loss")[0] == pytest.approx(values(run, "validation/loss")[40], rel=1e-5)
    assert "fresh" not in events(moved, "pretrained")[0]

    scratch = task_job("scratch", files["mnli"], **{**short, "checkpoint": {}})
    from_nothing = ranks.must_train(make_run(tmp_path, scratch), scratch, inject=UNSAVED)
    [before, _] = values(from_nothing, "validation/loss").values()
    assert abs(before - values(run, "validation/loss")[0]) > 1e-3, "the trunk is not as it is initialised"

    race = task_job("race", files["race"], checkpoint={"pretrained": "tuned"})
    masked_again = tiny_job("masked", model=MODEL, checkpoint={"pretrained": "tuned"}, **masked)
    for job, said in (
        (race, "task_head.weight is (3, 32) there and (1, 32) here"),
        (masked_again, "it lacks binary_head"),
    ):
        refused = make_run(tmp_path, job)
        assert ranks.start(refused, job).wait() == 1
        assert said in json.loads(refused.exit_record("test", 0).read_text())["message"]


def test_it_learns_to_choose(ranks: Ranks, files: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    job = task_job(
        "chooser",
        files["race"],
        batch={"micro_batch_size": 8},
        schedule={"train_iters": 40, "lr_warmup_iters": 4},
        optimizer={"lr": 5e-3},
        evaluation={"eval_interval": 40, "eval_iters": 10, "eval_at_start": True},
    )
    accuracy = values(ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED), "validation/accuracy")
    assert accuracy[0] < 0.6
    assert accuracy[40] > 0.9


def test_random_tokens_stand_in_for_the_files(ranks: Ranks, tmp_path: Path) -> None:
    """As `tune --measure` has it. Two processes load, and a pipeline passes on four sequences for each question."""
    task = {"name": "race", "train": "nowhere"}
    sections = {"data": {"random_tokens": True, "num_workers": 2}, "parallelism": layout(pp=2)}
    job = task_job("random", task, **sections, schedule={"train_iters": 2, "lr_warmup_iters": 1})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
    assert list(losses(run)) == [1, 2]


def test_resumption_is_bitwise(ranks: Ranks, files: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """With dropout, on the pooled token too, over several epochs, each in an order of its own."""
    job = task_job(
        "bitwise",
        files["race"],
        model={"hidden_dropout": 0.1, "attention_dropout": 0.1},
        parallelism=layout(tp=2),
        batch={"micro_batch_size": 10, "global_batch_size": 20},
        data={"random_tokens": False, "num_workers": 2},
    )
    whole, run = (make_run(tmp_path / name, job) for name in ("whole", "runs"))
    run.stop_file.write_text('{"by": "the test"}')
    ranks.train_several([whole, run], job.world_size)
    assert 0 < max(losses(run)) < STEPS
    run.stop_file.unlink()
    ranks.must_train(run, job, launch_id="second")
    assert losses(run) == losses(whole)
    assert list(losses(whole)) == list(range(1, STEPS + 1))


def test_a_bad_row_is_named(orchestrator: CommandLine, files: dict[str, dict[str, Any]]) -> None:
    path = orchestrator.folder / "bad.tsv"
    path.write_text(Path(files["mnli"]["train"]).read_text() + "one\ttwo\n")
    job = task_job("bad", {**files["mnli"], "train": str(path)}, parallelism=layout(dp=2))
    said = orchestrator("run", orchestrator.write(job))
    assert said.code == 2
    assert f"{path}:74: this row has 2 columns, and the first line names 12" in said.err + said.out
    assert "Traceback" not in said.err + said.out

    absent = task_job("absent", {**files["mnli"], "train": "nowhere.tsv"})
    said = orchestrator("run", orchestrator.write(absent))
    assert said.code == 2
    assert "nowhere.tsv is not there" in said.err
