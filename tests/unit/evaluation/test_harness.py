"""Tasks of lm-evaluation-harness as a person writes them, without a network behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.refused import refused
from support.training import tiny_job

from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.evaluation.base import Prompt, Score, ScoredTokens, TaskContext
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest

pytest.importorskip("lm_eval", reason="lm-eval is an extra, and is not installed")

from orchestrator.evaluation import harness as module
from orchestrator.evaluation.harness import Harness

JOB = tiny_job(
    "job",
    model={"vocab_size": 261, "seq_length": 32},
    data={"random_tokens": True, "tokenizer": {"type": "byte_level"}},
)


class Network:
    """Bytes are alike, and of two answers the shorter one is the likelier; it writes the same to all."""

    def __init__(self) -> None:
        self.scored: list[ScoredTokens] = []
        self.prompts: list[Prompt] = []

    def scores(self, part: str, sequences: Sequence[ScoredTokens]) -> list[Score]:
        self.scored += sequences
        return [Score(-math.log(256) * (len(one.tokens) - one.first), False) for one in sequences]

    def texts(self, part: str, prompts: Sequence[Prompt]) -> list[str]:
        self.prompts += prompts
        return ["yes" for _ in prompts]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    documents = [{"q": f"{number}?", "choices": ["no", "maybe"], "answer": number % 2} for number in range(4)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    common = {
        **{"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}}},
        **{"test_split": "test", "doc_to_text": "{{q}} "},
    }
    choice = {
        **{"task": "toy_choice", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}"},
        **{"doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}]},
    }
    writing = {
        **{"task": "toy_writing", "output_type": "generate_until", "doc_to_target": "yes"},
        **{"generation_kwargs": {"until": ["\n"], "max_gen_toks": 30}, "metric_list": [{"metric": "exact_match"}]},
    }
    for task in (choice, writing):
        (tmp_path / f"{task['task']}.yaml").write_text(yaml.safe_dump({**common, **task}))
    group = {"group": "toys", "task": ["toy_choice", "toy_writing"]}
    (tmp_path / "toys.yaml").write_text(yaml.safe_dump(group))
    return tmp_path


REST: dict[str, Any] = {"num_fewshot": None, "limit": None}


def harness(where: str, folder: Path, **options: Any) -> Harness:
    given = {"add_bos": False, "include_path": [str(folder)], **REST, **options}
    return Harness(
        EvaluationRequest("lm-eval", "lm-eval/name", where, given), TaskContext(JOB, load_tokenizer(JOB.data.tokenizer))
    )


def test_a_group_says_which_of_its_tasks_a_number_is_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network: Any = Network()
    found = harness("toys", folder).measure(network)
    assert {name: measure.value for name, measure in found.metrics.items()} == {
        "toy_choice/acc": 0.5,
        "toy_writing/exact_match": 1.0,
    }
    assert found.metrics["toy_choice/acc"].stderr == pytest.approx(math.sqrt(0.25 / 3))
    assert found.counts == {"documents": 8}
    assert capsys.readouterr().out == "", "standard output is ours"
    assert bytes(network.scored[0].tokens) == b"0?  no"
    assert network.scored[0].first == 2, "a space at the end of the context is the answer's"
    [prompt, *_] = network.prompts
    assert bytes(prompt.tokens) == b"? ", "two positions are left for it"
    assert prompt.options == {"max_new_tokens": 30, "stop": ["\n"], "temperature": 0.0, "seed": 1234}


def test_fewshot_and_limit_are_part_of_what_is_measured(folder: Path) -> None:
    network: Any = Network()
    task = harness(str(folder / "toy_choice.yaml"), folder, num_fewshot=1, limit=2)
    assert task.measure(network).counts == {"documents": 2}
    assert bytes(network.scored[0].tokens).count(b"?") == 2
    plain = harness("toy_choice", folder).contents
    assert plain == harness(str(folder / "toy_choice.yaml"), folder).contents
    (folder / "data.jsonl").write_text((folder / "data.jsonl").read_text().replace("maybe", "perhaps"))
    assert plain != harness("toy_choice", folder).contents


def test_a_prompt_is_drawn_from_as_often_as_it_is_asked_for(folder: Path) -> None:
    path = folder / "toy_writing.yaml"
    drawn = {
        "repeats": 3,
        "generation_kwargs": {"max_gen_toks": 4, "do_sample": True, "temperature": 0.7, "top_p": 0.9},
    }
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **drawn}))
    network: Any = Network()
    harness(str(path), folder).measure(network)
    assert [prompt.options["seed"] for prompt in network.prompts] == [1234, 1235, 1236] * 4
    assert network.prompts[0].options == {
        **{"max_new_tokens": 4, "stop": ["\n\n"], "temperature": 0.7, "top_p": 0.9, "seed": 1234},
    }


def test_the_token_that_begins_a_text_is_put_before_it_when_asked_for(folder: Path) -> None:
    with refused("no_begin_token", "--add-bos"):
        harness("toys", folder, add_bos=True)
    tokenizer = load_tokenizer(JOB.data.tokenizer)
    tokenizer.bos = 257
    asked = EvaluationRequest("lm-eval", "name", "toys", {"add_bos": True, "include_path": [str(folder)], **REST})
    network: Any = Network()
    Harness(asked, TaskContext(JOB, tokenizer)).measure(network)
    assert (list(network.scored[0].tokens), network.scored[0].first) == ([257, *b"0?  no"], 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dataset_kwargs": {"data_files": {"test": "nowhere.jsonl"}}}, "FileNotFoundError"),
        ({"dataset_path": "some/hub-dataset", "dataset_kwargs": {}}, "(a task's data must be on this machine:"),
        ({"test_split": "absent"}, "KeyError"),
        ({"doc_to_text": "{{ q"}, "TemplateSyntaxError: unexpected end of template"),
        ({"generation_kwargs": {"max_gen_toks": 32}}, "max_gen_toks 32 leaves no room for a context: the model has 32"),
        ({"generation_kwargs": {"typical_p": 0.5, "max_gen_toks": 4}}, "generation_kwargs has typical_p; known are"),
    ],
)
def test_what_is_wrong_with_a_task_is_one_message(folder: Path, change: dict[str, Any], said: str) -> None:
    path = folder / "toy_writing.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    with pytest.raises(UserError) as error:
        harness(str(path), folder).measure(Network())
    assert said in str(error.value)
    assert str(error.value).count(f"--lm-eval {path}") == 1


def test_what_the_network_raises_stays_what_it_is(folder: Path) -> None:
    class Broken(Network):
        def scores(self, part: str, sequences: Sequence[ScoredTokens]) -> list[Score]:
            raise ValueError("not a person's mistake")

    with pytest.raises(ValueError, match="not a person's mistake"):
        harness("toy_choice", folder).measure(Broken())


def test_a_name_that_nobody_knows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the harness brings are left out here: to look through them takes five seconds."""
    monkeypatch.setattr(module, "TaskManager", partial(module.TaskManager, include_defaults=False))
    with refused("missing_harness_task", "--lm-eval toy_absent"):
        harness("toy_absent", folder)
