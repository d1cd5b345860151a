"""From files, overrides and presets to a job."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.problems import codes, problems_of
from support.refused import refused

from orchestrator.spec.documents.field_names import overridden, resolve, short_names
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_job, load_resolved, load_text
from orchestrator.spec.schema.canonical import config_hash


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# Values as YAML 1.2 has them


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("optimizer.lr=1e-4", lambda job: job.optimizer.lr, 1e-4),
        ("optimizer.lr=1E-4", lambda job: job.optimizer.lr, 1e-4),
        ("optimizer.lr='1e-4'", lambda job: job.optimizer.lr, 1e-4),
        ("optimizer.weight_decay=0", lambda job: job.optimizer.weight_decay, 0.0),
        ("model.rotary_base=0x2710", lambda job: job.model.rotary_base, 10000),
        ("model.rotary_base=999999.4420358813", lambda job: job.model.rotary_base, 999999.4420358813),
        ("schedule.train_iters=1_000", lambda job: job.schedule.train_iters, 1000),
        ("schedule.train_iters=1e3", lambda job: job.schedule.train_iters, 1000),
        ("schedule.train_iters=2k", lambda job: job.schedule.train_iters, 2000),
        ("checkpoint.save_seconds=1h30m", lambda job: job.checkpoint.save_seconds, 5400),
        ("name=no", lambda job: job.name, "no"),
        ("name=010", lambda job: job.name, "010"),
        ("name=1e5", lambda job: job.name, "1e5"),
        ("tracking.experiment=2024-01-01", lambda job: job.tracking.experiment, "2024-01-01"),
        ("tracking.experiment=a: b, [c]", lambda job: job.tracking.experiment, "a: b, [c]"),
        ("tracking.experiment='quoted'", lambda job: job.tracking.experiment, "quoted"),
        ("tracking.experiment=*star", lambda job: job.tracking.experiment, "*star"),
        ("tracking.uri=http://host:5000?a=b", lambda job: job.tracking.uri, "http://host:5000?a=b"),
        ("tracking.mlflow=off", lambda job: job.tracking.mlflow, False),
        ("tracking.mlflow=yes", lambda job: job.tracking.mlflow, True),
        ("launch.env.OMP_SCHEDULE=on", lambda job: job.launch.env, {"OMP_SCHEDULE": "on"}),
        ("launch.env.LEVEL=1e-3", lambda job: job.launch.env, {"LEVEL": "1e-3"}),
        ("launch.env={A: 010, B: true}", lambda job: job.launch.env, {"A": "010", "B": "true"}),
        ("data.split=95, 4, 1", lambda job: job.data.split, "95,4,1"),
        ("data.blend=corpus", lambda job: [entry.path for entry in job.data.blend], ["corpus"]),
        ("data.blend=[a, b]", lambda job: [entry.path for entry in job.data.blend], ["a", "b"]),
        (
            "data.blend=[a, {path: b, weight: 2}, c]",
            lambda job: [(entry.path, entry.weight) for entry in job.data.blend],
            [("a", 1.0), ("b", 2.0), ("c", 1.0)],
        ),
        ("data.blend=[0.3, a, 0.7, b]", lambda job: [entry.weight for entry in job.data.blend], [0.3, 0.7]),
        ("batch.rampup_batch_size=[2, 2, 1k]", lambda job: job.batch.rampup_batch_size.samples, 1000),
        ("batch={micro_batch_size: 4}", lambda job: job.batch.micro_batch_size, 4),
        ("lr=3e-4", lambda job: job.optimizer.lr, 3e-4),
        (" mbs = 4", lambda job: job.batch.micro_batch_size, 4),
        ("iters=7", lambda job: job.schedule.train_iters, 7),
        ("rope_scaling={type: linear, factor: 2}", lambda job: job.model.rope_scaling.factor, 2),
        ("evaluation.eval_interval=", lambda job: job.evaluation.eval_interval, None),
        ("parallelism=null", lambda job: job.parallelism.tensor_model_parallel_size, 1),
    ],
)
def test_override(small: Any, override: str, field: Any, value: object) -> None:
    assert field(small.job(override)) == value


def test_a_short_name_of_several_fields_is_told_with_them(small: Any) -> None:
    for name, candidates in (("seed", ("data.seed", "runtime.seed")), ("lrr", ("optimizer.lr",))):
        [problem] = small.problems(f"{name}=3")
        assert problem.code == "unknown_key"
        assert all(path in str(problem.hint) for path in candidates)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        *[("12", "model.num_layers"), ("0", "model.num_layers"), ("null", "model.num_layers")],
        *[("torch", "runtime.layers"), ("auto", "runtime.layers"), ("' torch '", "layers"), ("foo", "layers")],
    ],
)
def test_a_short_name_of_two_fields_means_the_one_that_takes_the_value(value: str, path: str) -> None:
    assert overridden(f"layers={value}") == path


def test_a_value_that_neither_field_of_a_short_name_takes_is_refused_with_both(small: Any) -> None:
    [problem] = small.problems("layers=foo")
    assert (problem.code, problem.paths) == ("ambiguous_key", ("layers",))
    assert all(path in str(problem.hint) for path in ("model.num_layers", "runtime.layers"))


@pytest.mark.parametrize("name", [*short_names(), "lr", "min_lr", "weight_decay", "rope_scaling"])
def test_overrides_and_sweeps_have_the_same_names(name: str) -> None:
    path = resolve(name)
    assert path is not None
    assert overridden(f"{name}=1") == overridden(f"{path}=1") == path


def test_the_last_override_wins(small: Any) -> None:
    assert small.job("optimizer.lr=1", "optimizer.lr=2").optimizer.lr == 2


def test_sequence_parallel_as_a_bool_or_as_the_degree(small: Any) -> None:
    tp = "parallelism.tensor_model_parallel_size=2"
    for value, on in (("true", True), ("2", True), ("yes", True), ("false", False)):
        job = small.job(tp, f"parallelism.sequence_parallel={value}")
        assert job.parallelism.uses_sequence_parallel is on


# Composition


def test_later_files_go_over_earlier_ones(tmp_path: Path, small: Any) -> None:
    base = write(tmp_path / "base.yaml", small.text)
    over = write(
        tmp_path / "over.yaml", "model: {num_layers: 8}\ndata: {blend: [{path: other}]}\nschedule: {train_iters: 7}\n"
    )
    job = load_job([base, over], ["schedule.train_iters=9"]).job
    assert (job.model.num_layers, job.model.hidden_size) == (8, 128)
    assert job.data.blend is not None
    assert [entry.path for entry in job.data.blend] == ["other"], "lists are replaced whole"
    assert job.schedule.train_iters == 9


def test_null_takes_a_key_back_to_its_default(tmp_path: Path, small: Any) -> None:
    base = write(tmp_path / "base.yaml", small.text + "runtime: {seed: 7, device: cpu}\nlaunch: {env: {A: b, C: d}}\n")
    over = write(tmp_path / "over.yaml", "runtime: {seed: null}\nlaunch: {env: {A: ~}}\n")
    job = load_job([base, over]).job
    assert (job.runtime.seed, job.runtime.device) == (1234, "cpu")
    assert job.launch.env == {"C": "d"}


def test_a_section_that_was_taken_back_can_be_written_again(tmp_path: Path, small: Any) -> None:
    base = write(tmp_path / "base.yaml", small.text + "runtime: {seed: 7, device: cpu}\n")
    over = write(tmp_path / "over.yaml", "runtime: null\n")
    last = write(tmp_path / "last.yaml", "runtime: {seed: 8}\n")
    runtime = load_job([base, over, last]).job.runtime
    assert (runtime.seed, runtime.device) == (8, "auto")


def test_extends_is_relative_to_its_file_and_goes_on(
    tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "common" / "base.yaml", small.text)
    write(tmp_path / "common" / "wide.yaml", "extends: base.yaml\nmodel: {hidden_size: 256}\n")
    write(tmp_path / "mine" / "job.yaml", "extends: ../common/wide.yaml\nmodel: {num_layers: 8}\n")
    monkeypatch.chdir(tmp_path / "mine")
    loaded = load_job([Path("job.yaml")])
    model = loaded.job.model
    assert (model.hidden_size, model.num_layers, model.seq_length) == (256, 8, 128)
    assert str(loaded.places.location("model.hidden_size")) == "../common/wide.yaml:2:9"
    assert str(loaded.places.location("model.seq_length")) == "../common/base.yaml:2:66"
    assert loaded.places.location("model.vocab_size") is None


def test_a_chain_of_extends_has_an_end(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        write(Path(f"{number}.yaml"), f"extends: {number + 1}.yaml\n")
    write(Path("30.yaml"), small.text)
    assert load_job([Path("15.yaml")]).job.name == "small"
    assert "long_extends_chain extends" in codes(problems_of(lambda: load_job([Path("0.yaml")])))


def test_a_preset_lies_under_the_model_section(small: Any) -> None:
    text = small.text.replace("num_layers: 4, hidden_size: 128, num_attention_heads: 4", "preset: gpt2, num_layers: 6")
    model = load_text(text).job.model
    assert (model.num_layers, model.hidden_size, model.vocab_size, model.seq_length) == (6, 768, 50257, 128)
    assert load_text(text, overrides=["model.preset=gpt2-xl"]).job.model.hidden_size == 1600
    assert load_text(text, overrides=["model.vocab_size=null"]).job.model.vocab_size is None


def test_locations_of_overrides_and_presets(small: Any) -> None:
    text = small.text.replace("num_layers: 4, ", "preset: gpt2, ")
    places = load_text(text, "a.yaml", ["optimizer.lr=1"]).places
    assert str(places.location("optimizer.lr")) == "--set optimizer.lr=1"
    assert str(places.location("model.num_layers")) == "preset gpt2:2:1"
    assert str(places.location("data.blend")) == "a.yaml:4:8"


def test_a_problem_of_one_field_that_is_shown_at_another_names_it(small: Any) -> None:
    text = small.text + "parallelism: {pipeline_model_parallel_size: 2, pipeline_model_parallel_layout: Ett|ttL}\n"
    assert load_text(text, overrides=["model.num_layers=4", "launch.gpus_per_node=2"]).job.model.num_layers == 4
    [problem] = problems_of(lambda: load_text(text, overrides=["launch.gpus_per_node=2", "model.num_layers=8"]))
    assert problem.code == "pipeline_layout"
    assert problem.paths[0] == "parallelism.pipeline_model_parallel_layout"
    assert str(problem.location) == "--set model.num_layers=8"


def test_the_text_is_kept_as_written(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("base.yaml"), small.text)
    assert load_job([Path("base.yaml")]).text == small.text
    write(Path("job.yaml"), "extends: base.yaml\n# why\nname: other")
    text = load_job([Path("job.yaml")], ["optimizer.lr=1"]).text
    assert (
        text
        == f"# base.yaml\n{small.text}\n# job.yaml\nextends: base.yaml\n# why\nname: other\n\n# --set optimizer.lr=1\n"
    )


def test_references_stay_references(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_PASSWORD", "not-to-be-seen")
    loaded = load_text(small.text, overrides=["tracking.uri=https://me:${env:MLFLOW_PASSWORD}@host"])
    stored = dump_resolved(loaded.job) + loaded.text
    assert "${env:MLFLOW_PASSWORD}" in stored
    assert "not-to-be-seen" not in stored


# Stored specs


def test_a_stored_spec_is_the_same_job(tmp_path: Path, small: Any) -> None:
    job = small.job("data.blend=[0.25, a, 0.75, b]", "batch.rampup_batch_size=[2, 2, 1k]", "tracking.tags.team=ours")
    stored = write(tmp_path / "resolved.json", dump_resolved(job))
    assert load_resolved(stored) == job
    assert load_resolved(stored).config_hash == job.config_hash
    assert load_text(dump_resolved(job)).job == job, "a stored spec is YAML as well"


def test_what_a_stored_spec_has_more_is_ignored(tmp_path: Path, small: Any) -> None:
    data = json.loads(dump_resolved(small.job()))
    data["telepathy"] = {"on": True}
    data["model"]["num_souls"] = 21
    data["data"]["blend"][0]["mood"] = "blue"
    assert load_resolved(write(tmp_path / "resolved.json", json.dumps(data))) == small.job()


def test_rules_of_today_do_not_refuse_a_stored_spec(tmp_path: Path, small: Any) -> None:
    data = json.loads(dump_resolved(small.job()))
    data["checkpoint"]["save_interval"] = 5000
    assert load_resolved(write(tmp_path / "resolved.json", json.dumps(data))).checkpoint.save_interval == 5000


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "\xff"],
)
def test_a_damaged_stored_spec(tmp_path: Path, content: str) -> None:
    with refused("damaged_stored_spec", "resolved.json"):
        load_resolved(write(tmp_path / "resolved.json", content))


def test_a_stored_spec_with_wrong_fields(tmp_path: Path) -> None:
    stored = write(tmp_path / "resolved.json", '{"name": 3}')
    missing = [f"missing_key {section}" for section in ("model", "batch", "data", "optimizer", "schedule")]
    assert codes(problems_of(lambda: load_resolved(stored))) == ["wrong_type name", *missing]


def test_a_stored_spec_that_is_not_there(tmp_path: Path) -> None:
    with refused("unreadable_file", "resolved.json"):
        load_resolved(tmp_path / "resolved.json")


_PRINT_HASH = """
import sys
from orchestrator.spec.loading import load_text
print(load_text(sys.argv[1], overrides=["tracking.tags={b: x, a: y, c: z}"]).job.config_hash)
"""


def test_the_hash_is_the_same_in_every_process(small: Any) -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_HASH, small.text],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("0", "1", "2")
    }
    assert printed == {small.job("tracking.tags={c: z, a: y, b: x}").config_hash}


def test_the_hash_is_of_what_the_spec_says_not_of_how(small: Any) -> None:
    written_out = small.job("optimizer.lr=0.001", "schedule.train_iters=1e2", "launch.nodes=1")
    assert written_out.config_hash == small.job().config_hash
    assert small.job("optimizer.lr=0.002").config_hash != small.job().config_hash


def test_a_number_that_may_be_a_fraction_is_stored_whole_where_it_is(small: Any) -> None:
    jobs = [small.job(f"model.rotary_base={value}") for value in ("20000", "2e4", "20000.5")]
    written = [re.search(r'"rotary_base": (.*),', dump_resolved(job)) for job in jobs]
    assert [each and each[1] for each in written] == ["20000", "20000", "20000.5"]
    assert jobs[0].config_hash == jobs[1].config_hash != jobs[2].config_hash


def test_a_stored_spec_keeps_its_hash_as_the_spec_grows() -> None:
    """A changed hash here trains every cell of every sweep anew: see the table of canonical.py."""
    stored = Path(__file__).parent / "stored_resolved.json"
    known = "73f6ab96f17671fe053479893aa7efec83fd77b87018aff10ed9f7333e85aa67"
    document = json.loads(stored.read_bytes())
    job = load_resolved(stored)
    assert "notifications" not in document
    assert config_hash(document) == job.config_hash == config_hash(job.model_dump(mode="json")) == known


def test_what_a_newer_key_says_counts(small: Any) -> None:
    said = ("tracking.tensorboard=true", "tracking.system_metrics_seconds=0", "notifications.command=[true]")
    assert len({small.job(*overrides).config_hash for overrides in [(), *((each,) for each in said)]}) == 4


def test_measurements_of_the_machine_have_a_shortest_interval(small: Any) -> None:
    assert small.job("tracking.system_metrics_seconds=0.1").tracking.system_metrics_seconds == 0.1
    assert small.refused("tracking.system_metrics_seconds=0.01") == ["invalid_value tracking.system_metrics_seconds"]


_PRINT_MODULES = """
import sys
from orchestrator.spec.loading import load_text
load_text(sys.argv[1])
heavy = {"torch", "megatron", "mlflow", "transformers", "tokenizers", "numpy", "pandas", "jinja2", "typer", "rich"}
print(sorted(heavy & set(sys.modules)))
"""


def test_loading_is_light(small: Any) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _PRINT_MODULES, small.text], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"


def test_a_job_built_in_python_is_checked_as_well(small: Any) -> None:
    job = small.job()
    stages = {**job.model_dump(), "parallelism": {"pipeline_model_parallel_size": 3}}
    found = codes(problems_of(lambda: JobSpec.model_validate(stages)))
    assert found == ["layers_by_stages parallelism.pipeline_model_parallel_size"]
    parts = {name: getattr(job, name) for name in ("name", "model", "data", "schedule")}
    parts["batch"] = job.batch.model_copy(update={"global_batch_size": 7})
    parts["optimizer"] = job.optimizer.model_copy(update={"min_lr": 1.0})
    found = codes(problems_of(lambda: JobSpec(**parts)))
    assert found == ["global_batch batch.global_batch_size", "lowest_learning_rate optimizer.min_lr"]


@pytest.mark.parametrize(
    ("tokenizer", "kind"),
    [
        ("{path: a/tokenizer.json}", "huggingface"),
        ("{path: a/bert-vocab.txt}", "wordpiece"),
        ("{path: a/x.model, type: null}", "sentencepiece"),
        ("{path: vocab.json, merges: merges.txt}", "gpt2_bpe"),
        ("{path: odd.json, type: huggingface}", "huggingface"),
        ("{path: x.model, type: huggingface}", "huggingface"),
        ("{}", "byte_level"),
    ],
)
def test_the_path_of_a_tokenizer_tells_its_type(small: Any, tokenizer: str, kind: str) -> None:
    job = small.job(f"data.tokenizer={tokenizer}")
    assert job.data.tokenizer.type == kind
    if "type" not in tokenizer and kind != "byte_level":
        assert job == small.job(f"data.tokenizer={tokenizer}", f"data.tokenizer.type={kind}")


def test_a_folder_with_a_tokenizer_json_is_one(small: Any, tmp_path: Path) -> None:
    assert small.refused(f"data.tokenizer.path={tmp_path}") == ["tokenizer_path data.tokenizer.path"]
    (tmp_path / "tokenizer.json").write_text("{}")
    assert small.job(f"data.tokenizer.path={tmp_path}").data.tokenizer.type == "huggingface"
