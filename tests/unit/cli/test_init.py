"""`orchestrator init`: what it asks, what it refuses, what it writes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.answering import TOKENIZER, Person
from support.depth import examples
from support.terminal import on_terminal

from orchestrator.cli.jobs.job_files.job_text import CONVERSATIONS, OPTIONS, YOUR_DATA, job_text
from orchestrator.cli.jobs.job_files.questionnaire import ask, problem_with, spec_values
from orchestrator.cli.main import main
from orchestrator.spec.loading import load_job, load_text
from orchestrator.spec.presets import preset_names
from orchestrator.spec.sections.chat import ChatSpec


def test_yes_writes_a_job_that_validates(orchestrator: Any, tmp_path: Path) -> None:
    assert orchestrator("init", "--yes").code == 0
    validated = orchestrator("validate", "job.yaml")
    assert validated.code == 0
    assert "exports as   Llama (Hugging Face)" in validated.out
    text = (tmp_path / "job.yaml").read_text()
    assert "# " in text


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset(preset: str) -> None:
    job = load_text(job_text(spec_values({"model.preset": preset}))).job
    assert job.model.preset == preset


def test_a_model_that_sees_is_told_of_conversations(orchestrator: Any, tmp_path: Path) -> None:
    """Random tokens take none, and a blend needs them."""
    assert orchestrator("init", "--preset", "llava1.5-7b").code == 0
    text = (tmp_path / "job.yaml").read_text()
    assert f"\n  # {CONVERSATIONS}\n" in text
    uncommented = text.replace("  # blend:", "  blend:").replace("  # chat:", "  chat:")
    uncommented = "\n".join(line for line in uncommented.splitlines() if "random_tokens" not in line)
    assert load_text(uncommented).job.data.chat == ChatSpec(packing=False)
    assert CONVERSATIONS not in job_text(spec_values({"model.preset": "llama3-8b"}))
    blended = orchestrator("init", "--preset", "llava1.5-7b", "--set", "data.blend=data/mine", "-o", "-")
    assert load_text(blended.out).job.data.chat == ChatSpec(packing=False)


@pytest.mark.parametrize(
    "words",
    [("init", "--yes"), ("migrate", "--", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "2")],
    ids=lambda words: str(words[0]),
)
def test_editors_find_the_schema_beside_the_job(orchestrator: Any, tmp_path: Path, words: tuple[str, ...]) -> None:
    """By yaml-language-server's own line, from a file, with no network; what they check is what is written."""
    (tmp_path / "jobs").mkdir()
    first, *rest = words
    assert orchestrator(first, "-o", "jobs/mine.yaml", *rest).code in (0, 2)
    written = (tmp_path / "jobs" / "mine.yaml").read_text()
    [place] = re.findall(r"^#\s+yaml-language-server\s*:\s*\$schema=(\S+)$", written, re.MULTILINE)
    schema = json.loads((tmp_path / "jobs" / place).read_text())
    assert schema == orchestrator("schema").json
    for section, content in yaml.safe_load(written).items():
        [options] = [each for each in schema["properties"][section].get("anyOf", [{}]) if each != {"type": "null"}]
        if "$ref" in options:
            keys = schema["$defs"][options["$ref"].rpartition("/")[2]]["properties"]
            assert keys.keys() >= (content or {}).keys()


def test_a_schema_of_another_is_left_as_it_is(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.schema.json"
    for content, kept in [('{"title": "Pipeline"}', True), ("mine", True), ('{"title": "Job spec"}', False)]:
        path.write_text(content)
        assert orchestrator("init", "--yes", "--force").code == 0
        assert (path.read_text() == content) == kept


def test_nothing_is_overwritten(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("precious")
    refused = orchestrator("init", "--yes", "-o", path)
    assert refused.code == 2
    assert "--force" in refused.err
    assert path.read_text() == "precious"
    assert orchestrator("init", "--yes", "-o", path, "--force").code == 0
    assert path.read_text() != "precious"


def test_on_standard_output(orchestrator: Any, tmp_path: Path) -> None:
    assert orchestrator("init", "--yes", "-o", "there.yaml").code == 0
    printed = orchestrator("init", "--yes", "-o", "-")
    schema, _, job = (tmp_path / "there.yaml").read_text().partition("\n")
    assert "$schema=" in schema
    assert (printed.code, printed.out, printed.err) == (0, job, ""), "and no schema is written beside it"
    assert "leave out one of them" in orchestrator("init", "--yes", "-o", "-", "--json").json["message"]
    assert not (tmp_path / "-").exists()


def test_questions_are_not_asked_between_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    on_terminal(monkeypatch, "stdin")
    assert main(["init", "-o", "-"]) == 2
    assert capsys.readouterr().err.startswith("error: questions would be mixed with the output of -o - : add --yes")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "add --yes"),
        (("--preset", "gpt5"), "presets: "),
        (("--yes", "-o", "."), "is a folder"),
        (("--yes", "-o", "no/such/folder/job.yaml"), "cannot be written"),
        (("--yes", "--set", "model.colour=red"), "colour"),
        (("--yes", "--set", "parallelism.tensor_model_parallel_size=3"), "num_attention_heads"),
        (("--set", "name=x"), "--set goes with"),
    ],
)
def test_refusals(orchestrator: Any, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    finished = orchestrator("init", *arguments)
    assert finished.code == 2
    assert said in finished.err
    assert list(tmp_path.iterdir()) == []


def test_overrides_are_written(orchestrator: Any, tmp_path: Path) -> None:
    finished = orchestrator(
        "init", "--preset", "gpt2", "--json", "-o", "gpt2.yaml",
        "--set", "launch.gpus_per_node=4",
        "--set", "parallelism.tensor_model_parallel_size=2",
        "--set", "data.blend=[data/a, data/b]",
        "--set", "data.random_tokens=false",
        "--set", "launch.env={NCCL_DEBUG: WARN}",
        "--set", "checkpoint.save_seconds=30m",
        "--set", "optimizer.lr=6e-4",
    )  # fmt: skip
    assert finished.code == 0
    job = load_text((tmp_path / "gpt2.yaml").read_text()).job
    assert finished.json == {"path": "gpt2.yaml", "job": job.model_dump(mode="json")}
    assert job.parallelism.tensor_model_parallel_size == 2
    assert [entry.path for entry in job.data.blend or []] == ["data/a", "data/b"]
    assert job.launch.env == {"NCCL_DEBUG": "WARN"}
    assert job.checkpoint.save_seconds == 1800
    assert job.optimizer.lr == 6e-4


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["parallelism.tensor_model_parallel_size=2"], {"launch.gpus_per_node": 2, "data.random_tokens": True}),
        (
            [
                "parallelism.tensor_model_parallel_size=2",
                "parallelism.pipeline_model_parallel_size=4",
                "launch.nodes=2",
            ],
            {"launch.gpus_per_node": 4, "batch.num_micro_batches": 16, "parallelism.sequence_parallel": True},
        ),
        (["parallelism.tensor_model_parallel_size=2", "parallelism.data_parallel_size=2"], {"launch.gpus_per_node": 4}),
        (["parallelism.tensor_model_parallel_size=2", "launch.gpus_per_node=4"], {"launch.gpus_per_node": 4}),
        (["data.blend=data/mine"], {"data.random_tokens": False, "model.vocab_size": None}),
        (
            ["data.blend=[0.7, data/a, 0.3, data/b]", "data.tokenizer.path=a/x.model"],
            {"data.random_tokens": False, "data.tokenizer.type": "sentencepiece"},
        ),
        (["batch.global_batch_size=64"], {"batch.num_micro_batches": None}),
        (["schedule.train_tokens=1M"], {"schedule.train_iters": None, "schedule.train_tokens": 1_000_000}),
    ],
)
def test_the_defaults_go_with_what_is_set(
    orchestrator: Any, overrides: list[str], expected: dict[str, Any], tmp_path: Path
) -> None:
    finished = orchestrator("init", "--yes", *(f"--set={override}" for override in overrides))
    assert finished.code == 0, finished.err
    job = load_text((tmp_path / "job.yaml").read_text()).job.model_dump()
    assert {path: job[path.split(".")[0]][path.split(".")[1]] for path in expected if path.count(".") == 1} == {
        path: value for path, value in expected.items() if path.count(".") == 1
    }
    if "data.tokenizer.type" in expected:
        assert job["data"]["tokenizer"]["type"] == expected["data.tokenizer.type"]


def test_what_does_not_go_with_the_defaults_cites_no_line_of_them(orchestrator: Any) -> None:
    finished = orchestrator("init", "--yes", "--set", "launch.gpus_per_node=3", "--set", "batch.global_batch_size=4")
    assert finished.code == 2
    assert "parallelism" in finished.err or "batch" in finished.err
    assert re.search(r"the defaults:\d", finished.err) is None
    finished = orchestrator("init", "--yes", "--set", "data.random_tokens=false")
    assert finished.code == 2
    assert re.search(r"the defaults:\d", finished.err) is None


def test_the_comments_of_the_data_section_can_be_filled_in() -> None:
    values = spec_values({})
    text = job_text(values)
    for line in YOUR_DATA[1:]:
        assert f"  # {line}\n" in text
        text = text.replace(f"  # {line}\n", f"  {line}\n")
    lines = [line for line in text.splitlines() if not line.startswith(("  random_tokens:", "  vocab_size:"))]
    job = load_text("\n".join(lines)).job
    assert (job.data.tokenizer.type, job.data.random_tokens) == ("huggingface", False)
    assert YOUR_DATA[0] not in job_text(spec_values({"data.blend": [{"path": "data/a"}]}))


@pytest.mark.parametrize("path", OPTIONS)
def test_the_options_shown_as_comments_are_legal(path: str) -> None:
    key = path.rpartition(".")[2]
    text = job_text(spec_values({}))
    assert any(line.lstrip("# ").startswith(f"{key}: ") and line.lstrip()[0] == "#" for line in text.splitlines())
    values = spec_values({})
    suits: dict[str, dict[str, Any]] = {
        "parallelism.virtual_pipeline_model_parallel_size": {
            "launch.gpus_per_node": 2,
            "parallelism.pipeline_model_parallel_size": 2,
            "batch.num_micro_batches": 2,
        },
        "batch.rampup_batch_size": {"batch.num_micro_batches": 32},
        "data.validation": {"data.random_tokens": False, "data.blend": [{"path": "data/a"}]},
        "schedule.train_tokens": {"schedule.train_iters": None},
        "checkpoint.keep_every": {"checkpoint.save_interval": 100},
        "evaluation.eval_iters": {"evaluation.eval_interval": 100},
    }
    values.update(suits.get(path, {}))
    text = job_text({path: value for path, value in values.items() if value is not None})
    load_text(text, overrides=[f"{path}={OPTIONS[path]}"])


def test_the_seeds_questionnaire() -> None:
    """The answers of the example in Accelerate's Megatron-LM guide."""
    person = Person(
        model__preset=["gpt2-large"],
        launch__gpus_per_node=["4"],
        parallelism__tensor_model_parallel_size=["2"],
        parallelism__pipeline_model_parallel_size=["2"],
        batch__num_micro_batches=["2"],
        runtime__recompute_granularity=["selective"],
        precision__dtype=["bf16"],
    )
    job = load_text(job_text(spec_values(ask(person.read, person.tell, {})))).job
    assert person.told == []
    assert job.world_size == 4
    assert (job.parallelism.tensor_model_parallel_size, job.parallelism.pipeline_model_parallel_size) == (2, 2)
    assert job.parallelism.uses_sequence_parallel
    assert job.num_micro_batches == 2
    assert job.runtime.recompute_granularity == "selective"
    assert job.precision.dtype == "bf16"
    assert job.optimizer.clip_grad == 1.0


def test_each_answer_is_checked_at_once_with_the_reason() -> None:
    person = Person(
        launch__gpus_per_node=["zero", "4"],
        parallelism__tensor_model_parallel_size=["3", "2"],
        parallelism__pipeline_model_parallel_size=["4", "2"],
        parallelism__sequence_parallel=["perhaps", "no"],
        optimizer__lr=["-1", "nan", "much", "1e-3"],
    )
    answers = ask(person.read, person.tell, {})
    assert len(person.told) == 7
    assert "'zero' is not a positive whole number" in person.told[0]
    assert "num_attention_heads" in person.told[1]
    assert answers["parallelism.tensor_model_parallel_size"] == 2
    assert answers["parallelism.pipeline_model_parallel_size"] == 2
    assert person.asked.count("optimizer.lr") == 4


def test_questions_that_do_not_apply_are_not_asked() -> None:
    person = Person()
    ask(person.read, person.tell, {})
    assert "parallelism.sequence_parallel" not in person.asked
    assert "parallelism.use_distributed_optimizer" not in person.asked
    assert "data.tokenizer.path" not in person.asked


def test_the_tokenizer_of_the_data_is_the_default(
    orchestrator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    made_with = {"type": "huggingface", "path": "tokenizer.json"}
    counts = dict.fromkeys(("vocab_size", "largest_token_id", "documents", "tokens", "text_bytes"), 9)
    told = {"tokenizer": made_with, "tokenizer_hash": "1", "dtype": "uint16", **counts}
    told |= {"empty_documents": 0, "skipped_records": 0}
    (tmp_path / "mine.manifest.json").write_text(json.dumps(told))
    for name, path in (("mine", "tokenizer.json"), ("another", None)):
        answers = ask(Person().read, Person().tell, {"data.blend": [{"path": name}]})
        assert answers["data.tokenizer.path"] == path
    assert orchestrator("init", "--yes", "--set", "data.blend=mine").code == 0
    assert load_job([tmp_path / "job.yaml"]).job.data.tokenizer.path == "tokenizer.json"


@settings(max_examples=examples(30))
@given(st.data())
def test_no_answer_makes_a_traceback_and_what_is_accepted_is_right(data: st.DataObject) -> None:
    told: list[str] = []
    mistakes = iter(range(8))

    def read(text: str, default: str) -> str:
        # A person who errs a few times and then gives up erring.
        if next(mistakes, None) is None:
            return default
        return data.draw(st.one_of(st.just(default), st.text(max_size=12), st.integers(-2, 9).map(str)))

    answers = ask(read, told.append, {})
    assert problem_with(answers) is None


def test_on_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "init"],
        cwd=tmp_path, stdin=follower, stdout=follower, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    os.write(leader, b"from-terminal\n" + b"\n" * 30)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other side has closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(timeout=120) == 0, shown
    assert b"Which model preset" in shown
    assert load_text((tmp_path / "job.yaml").read_text()).job.name == "from-terminal"
