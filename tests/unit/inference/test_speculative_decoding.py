"""Speculative decoding by a model's own layers of multi-token prediction: texts are those without drafts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import CommandLine, Ranks
from support.matrix import FAMILIES
from support.training import layout, make_run, tiny_job

from orchestrator.errors import UserError
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.generation import check_drafts
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a tiny training, and ranks for each layout")]

HERE = Path(__file__).parent
DRAFTS = 3
TOKENS = 24
"""New ones of most texts, as in speculative_program.py."""
LAYOUTS: dict[str, dict[str, Any]] = {"tp2": layout(tp=2, sequence_parallel=True), "pp2": layout(pp=2)}


def job(parallelism: dict[str, Any]) -> JobSpec:
    return tiny_job(
        "drafter",
        model={**FAMILIES["mtp"], "mtp_num_layers": DRAFTS, "vocab_size": 261},
        data={"random_tokens": True, "tokenizer": {"type": "byte_level"}},
        optimizer={"lr": 0.01},
        schedule={"train_iters": 40, "lr_warmup_iters": 2},
        parallelism=parallelism,
    )


@pytest.fixture(scope="module")
def run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    trained = job(layout())
    folder = make_run(tmp_path_factory.mktemp("runs"), trained)
    return ranks.must_train(folder, trained, inject=HERE / "phrases.py")


def generated(ranks: Ranks, run: RunDir, parallelism: dict[str, Any], out: Path, drafts: str) -> list[dict[str, Any]]:
    """What each rank wrote at a layout, by the number of drafts."""
    written = job(parallelism)
    (out / "job.json").write_text(dump_resolved(written))
    arguments, program = (str(out / "job.json"), str(out), *drafts), HERE / "speculative_program.py"
    assert ranks.starter.start(run.path, written.world_size, *arguments, program=program).wait() == 0
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(written.world_size)]


@pytest.fixture(scope="module")
def alone(ranks: Ranks, run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = generated(ranks, run, layout(), tmp_path_factory.mktemp("alone"), "0123")
    return found


SAME = ("greedy", "ended", "penalised", "beams", "one token")


@pytest.mark.parametrize("drafts", ["1", "2", "3"])
def test_greedy_texts_are_those_without_drafts(alone: dict[str, Any], drafts: str) -> None:
    """Of rows that accept different numbers of drafts, with other options, and where the end is among the drafts."""
    found, plain = alone[drafts], alone["0"]
    assert {name: found[name] for name in SAME} == {name: plain[name] for name in SAME}
    assert [len(tokens) for tokens in plain["greedy"]] == [TOKENS] * 4
    assert any(len(tokens) < TOKENS for tokens in plain["ended"])
    for ours, theirs in zip(found["~log probabilities"], plain["~log probabilities"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_drafts_are_accepted_and_others_not(alone: dict[str, Any], drafts: int) -> None:
    """Each round drafts as many tokens for a row as there are layers, and gives one more than are accepted."""
    assert alone["0"]["drafts"] == [[0, 0]] * 4
    for drafted, accepted in alone[str(drafts)]["drafts"]:
        rounds, beside = divmod(drafted, drafts)
        assert beside == 0
        assert TOKENS - 1 <= rounds + accepted <= TOKENS, (
            "the first token is no round's, and the last round may give more"
        )
        assert accepted > 0.5 * drafted
    if drafts > 1:
        assert len(set(map(tuple, alone[str(drafts)]["drafts"]))) > 1, "rows go on by themselves"


@pytest.mark.parametrize("drafts", ["1", "2", "3"])
def test_a_draw_depends_on_seed_and_prompt_alone(alone: dict[str, Any], drafts: str) -> None:
    found = alone[drafts]
    assert found["drawn in twos"] == found["drawn"]
    assert found["of each its own"] == found["each alone"]
    assert found["drawn"] != found["greedy"]


@pytest.mark.parametrize("drafts", ["1", "2", "3"])
def test_draws_have_the_models_distribution(alone: dict[str, Any], drafts: str) -> None:
    """Chi-square of 27 texts; 70 has a probability of 1e-5."""
    found = alone[drafts]["often"]
    assert sum(found["counts"]) == pytest.approx(sum(found["expected"])) == 1500
    counted = zip(found["counts"], found["expected"], strict=True)
    assert sum((count - wanted) ** 2 / wanted for count, wanted in counted) < 70
    accepted, drafted = found["accepted"]
    assert 0.05 * drafted < accepted < 0.95 * drafted


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_layouts_generate_the_same(
    ranks: Ranks, run: RunDir, alone: dict[str, Any], name: str, tmp_path: Path
) -> None:
    for rank in generated(ranks, run, LAYOUTS[name], tmp_path, "2"):
        assert rank["2"].keys() == alone["2"].keys() - {"often", "drawn in twos", "each alone"}
        for field, value in rank["2"].items():
            assert field.startswith("~") or value == alone["2"][field], field


def test_the_command_tells_how_many_were_accepted(orchestrator: CommandLine, run: RunDir) -> None:
    asked = ("generate", run.path, "--prompt", "abc", "--max-new-tokens", "12", "--temperature", "0", "--json")
    plain, drafting = (orchestrator(*asked, *more) for more in ((), ("--num-speculative-tokens", "2")))
    assert (plain.code, drafting.code) == (0, 0), drafting.err
    told = json.loads(drafting.out)
    drafted, accepted = told.pop("draft_tokens"), told.pop("accepted_tokens")
    assert told.pop("acceptance_rate") == accepted / drafted
    assert drafted % 2 == 0
    assert told == json.loads(plain.out)


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is an extra, and is not installed")
def test_tasks_that_generate_are_measured_with_drafts(orchestrator: CommandLine, run: RunDir) -> None:
    """The texts are compared with one that the model has written without drafts."""
    prompt = "abcdef"
    asked = ("--prompt", prompt, "--max-new-tokens", "12", "--temperature", "0", "--json")
    text = json.loads(orchestrator("generate", run.path, *asked).out)["text"]
    assert text
    (orchestrator.folder / "questions.jsonl").write_text(json.dumps({"question": prompt, "answer": text}) + "\n")
    task = {
        **{"task": "toy_writing", "output_type": "generate_until", "test_split": "test", "dataset_path": "json"},
        "dataset_kwargs": {"data_files": {"test": str(orchestrator.folder / "questions.jsonl")}},
        **{"doc_to_text": "{{question}}", "doc_to_target": "{{answer}}", "metric_list": [{"metric": "exact_match"}]},
        "generation_kwargs": {"until": ["\u2603"], "max_gen_toks": 12, "do_sample": False},
    }
    (orchestrator.folder / "task.yaml").write_text(json.dumps(task))
    said = orchestrator("evaluate", run.path, "--lm-eval", "task.yaml", "--num-speculative-tokens", "2", "--json")
    assert said.code == 0, said.err
    [result] = json.loads(said.out)
    assert result["metrics"]["exact_match"]["value"] == 1.0


@pytest.mark.parametrize(
    ("command", "more", "code"),
    [
        ("generate", ("--prompt", "abc", "--num-speculative-tokens", "4"), "too_few_draft_layers"),
        ("serve", ("--num-speculative-tokens", "4"), "too_few_draft_layers"),
        ("evaluate", ("--text", "book.txt", "--num-speculative-tokens", "1"), "option_without_effect"),
        ("generate", ("--prompt", "abc", "--num-speculative-tokens", "1", "--beams", "2"), "option_without_effect"),
    ],
)
def test_more_drafts_than_layers_are_refused(
    orchestrator: CommandLine, run: RunDir, command: str, more: tuple[str, ...], code: str
) -> None:
    (orchestrator.folder / "book.txt").write_text("text")
    said = orchestrator(command, run.path, *more, "--json")
    assert (said.code, json.loads(said.out)["code"]) == (2, code)


def test_a_model_without_such_layers_is_refused() -> None:
    plain = tiny_job("plain").model
    check_drafts(plain, 0, "it")
    with pytest.raises(UserError) as refused:
        check_drafts(plain, 1, "it")
    assert refused.value.code == "no_draft_layers"
