"""`orchestrator migrate` and `orchestrator render --as megatron-lm`, as a person runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 1 --train-iters 10 --lr 1e-3 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 999"
)
SCRIPT = f"""\
#!/bin/bash
TP=${{TP:-2}}
OUT=$1
torchrun --nproc_per_node 4 pretrain_gpt.py {FLAGS} \\
    --tensor-model-parallel-size $TP --save $OUT --tensorboard-dir "$(touch mark)"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_a_script_becomes_a_job_that_validates(orchestrator: Any, script: Path, tmp_path: Path) -> None:
    migrated = orchestrator("migrate", script)
    assert migrated.code == 0, migrated.err
    assert "carried over" in migrated.out
    assert "model.hidden_dropout: 0.1" in migrated.out
    assert orchestrator("validate", "job.yaml").code == 0
    assert not (tmp_path / "mark").exists()


def test_on_standard_output(orchestrator: Any, script: Path, tmp_path: Path) -> None:
    assert orchestrator("migrate", script).code == 0
    printed = orchestrator("migrate", script, "-o", "-")
    schema, _, job = (tmp_path / "job.yaml").read_text().partition("\n")
    assert "$schema=" in schema
    assert (printed.code, printed.out) == (0, job), "and no schema is written beside it"
    assert "carried over" in printed.err
    assert "wrote" not in printed.err
    part = orchestrator("migrate", "-o", "-", "--", "--num-layers", "2")
    assert part.code == 2
    assert part.out.startswith("# Migrated from the command line.")
    assert part.err.splitlines()[-1] == "this is not a complete job yet: what is missing is listed above and in it"
    assert orchestrator("migrate", "-o", "-", "--", "--nonsense-alone").code == 2
    assert "leave out one of them" in orchestrator("migrate", script, "-o", "-", "--json").json["message"]
    assert not (tmp_path / "-").exists()


def test_every_flag_is_in_the_json(orchestrator: Any, script: Path) -> None:
    document = orchestrator("migrate", script, "-o", "x.yaml", "--json", "--set-var", "TP=4").json
    assert document["valid"]
    assert document["path"] == "x.yaml"
    assert document["job"]["parallelism"]["tensor_model_parallel_size"] == 4
    told = {each["flag"].split()[0] for each in document["flags"]}
    assert {word for word in FLAGS.split() if word.startswith("--")} <= told
    assert document["defaults"]["model.attention_dropout"] == 0.1


def test_flags_on_the_line(orchestrator: Any, tmp_path: Path) -> None:
    migrated = orchestrator("migrate", "-o", "line.yaml", "--", *FLAGS.split())
    assert migrated.code == 0, migrated.err
    assert "number of GPUs" in migrated.out
    assert orchestrator("plan", tmp_path / "line.yaml").code == 0
    command = ["torchrun", "--nproc_per_node", "2", "pretrain_gpt.py", *FLAGS.split()]
    assert orchestrator("migrate", "--force", "--json", "--", *command).json["job"]["launch"]["gpus_per_node"] == 2


def test_what_is_missing_is_written_and_said(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"torchrun pretrain_gpt.py {FLAGS} --num-layers $LAYERS --fp32-residual-connection\n")
    migrated = orchestrator("migrate", path)
    assert migrated.code == 2
    assert "ANOTHER TRAINING" in migrated.out
    assert "--set-var LAYERS=VALUE" in migrated.out
    assert "model.num_layers" in migrated.err
    text = (tmp_path / "job.yaml").read_text()
    assert "--fp32-residual-connection" in text.split("\nname:")[0]
    assert orchestrator("validate", "job.yaml").code == 2
    written = ("migrate", path, "--force", "--set", "model.num_layers=2")
    other = orchestrator(*written)
    assert other.code == 2
    assert "--without fp32-residual-connection" in other.err
    assert orchestrator("validate", "job.yaml").code == 0, "it is written all the same"
    assert orchestrator(*written, "--json").json["valid"] is False
    meant = orchestrator(*written, "--without", "--fp32-residual-connection")
    assert meant.code == 0, meant.err


def test_arguments_of_the_script(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"torchrun pretrain_gpt.py {FLAGS} --seed $2 --data-cache-path $1\n")
    document = orchestrator("migrate", path, "/cache", "7", "--json").json
    assert document["job"]["runtime"]["seed"] == 7
    assert document["job"]["data"]["cache_dir"] == "/cache"


def test_a_family_that_is_not_there(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "vlm.sh"
    path.write_text(f"torchrun pretrain_vlm.py {FLAGS} --mamba-state-dim 64\n")
    migrated = orchestrator("migrate", path)
    assert migrated.code == 2
    assert "multimodal" in migrated.err
    assert "--mamba-state-dim" in migrated.out
    assert not (tmp_path / "job.yaml").exists()
    document = orchestrator("migrate", path, "--json")
    assert document.code == 2
    assert document.json["refused"]
    assert not document.json["valid"]


def test_accelerate(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "megatron_gpt_config.yaml"
    path.write_text(
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n  megatron_lm_pp_degree: 2\n"
        "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\n"
    )
    unfinished = orchestrator("migrate", path)
    assert unfinished.code == 2
    assert "write model.num_layers" in unfinished.err
    words = "--set data.random_tokens=true --set optimizer.lr=1e-4 --set schedule.train_iters=10 --set data.blend=null"
    finished = orchestrator("migrate", path, "--force", "--preset", "gpt2-large", *words.split())
    assert finished.code == 0, finished.err
    assert orchestrator("validate", "job.yaml").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gone.sh",), "there is no such file"),
        (("empty.sh",), "starts no recognisable training"),
        (("broken.sh",), "broken.sh:2: a quote that is not closed"),
        (("binary.sh",), "binary"),
        ((".",), "is a folder; name the file in it"),
        (("train.sh", "-o", "."), "is a folder"),
        (("train.sh", "-o", "kept.yaml"), "--force"),
        (("train.sh", "-o", "no/such/folder/x.yaml"), "cannot be written"),
        (("train.sh", "--set-var", "TP"), "NAME=VALUE"),
        (("train.sh", "--set-var", "1000000=x"), "that many"),
        (("train.sh", "--set", "nonsense"), "KEY=VALUE"),
        (("train.sh", "--set", "optimizer.lrr=2"), "optimizer.lr"),
        (("train.sh", "--without", "swiglu"), "has no such flag"),
        (("accelerate.yaml", "--without", "swiglu"), "has none"),
        (("train.sh", "--preset", "gpt2"), "a script has one"),
        (("train.sh", "--command", "2"), "there is no 2"),
        (("plain.yaml",), "megatron_lm_config"),
        (("accelerate.yaml", "--preset", "gpt9"), "there is no preset"),
        (("accelerate.yaml", "--set-var", "TP=2"), "nothing else has variables"),
        (("accelerate.yaml", "argument"), "takes no arguments"),
        (("--command", "1", "--", "--num-layers", "2"), "nothing else has variables"),
        (("--", "--nonsense-alone"), "wrote"),
    ],
)
def test_refusals_are_one_clear_line(
    orchestrator: Any, script: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "empty.sh").write_text("")
    (tmp_path / "broken.sh").write_text("A=1\nB='x\n")
    (tmp_path / "binary.sh").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "kept.yaml").write_text("precious")
    (tmp_path / "plain.yaml").write_text("a: 1\n")
    (tmp_path / "accelerate.yaml").write_text("megatron_lm_config: {megatron_lm_tp_degree: 2}\n")
    finished = orchestrator("migrate", *arguments)
    assert finished.code == 2
    assert said in finished.err
    assert (tmp_path / "kept.yaml").read_text() == "precious"


def test_the_flags_of_a_job(orchestrator: Any, job_file: Path, tmp_path: Path) -> None:
    rendered = orchestrator("render", job_file, "--as", "megatron-lm")
    assert rendered.code == 0, rendered.err
    assert "--num-layers 4\n" in rendered.out
    assert "#   model.preset: gpt-tiny" in rendered.out
    path = tmp_path / "pretrain.sh"
    path.write_text(rendered.out)
    subprocess.run(["bash", "-n", path], check=True)
    assert orchestrator("migrate", path, "-o", "back.yaml").code == 0
    document = orchestrator("render", job_file, "--as", "megatron-lm", "--json").json
    assert document["flags"][:2] == ["--num-layers", "4"]
    assert {each["path"] for each in document["unsaid"]} >= {"model.preset"}
    assert orchestrator("render", job_file, "--as", "deepspeed").code == 2


def test_the_script_itself_is_never_written_over(orchestrator: Any, script: Path, tmp_path: Path) -> None:
    before = script.read_text()
    refused = orchestrator("migrate", script, "-o", script, "--force")
    assert refused.code == 2
    assert "is the file to migrate" in refused.err
    assert script.read_text() == before
    (tmp_path / "job.yaml").write_text("name: mine\n")
    missing = orchestrator("migrate", "nope.sh")
    assert missing.code == 2
    assert "nope.sh: there is no such file" in missing.err, "what was asked for comes first"
