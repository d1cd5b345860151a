"""Whole scripts, as people write them, and the jobs that they become."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refused import refused

from orchestrator.errors import UserError
from orchestrator.migration.from_accelerate import migrate_accelerate
from orchestrator.migration.from_megatron import migrate_script, migrate_words
from orchestrator.migration.report import Migration
from orchestrator.migration.shell.values import known
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text

GOLDEN = Path(__file__).parents[2] / "golden"
ARGUMENTS = ("checkpoints", "gpt2-vocab.json", "gpt2-merges.txt", "/data")
CASES = {
    "arrays": ("arrays.sh", ARGUMENTS, {}),
    "slurm": ("slurm.sh", (), {"SCRATCH": "/scratch", "DATA_ROOT": "/lustre/tokens"}),
    "slurm-unknown": ("slurm.sh", (), {}),
    "old": ("old.sh", (), {}),
    "flags": ("benchmark.txt", (), {}),
}
VALID = ("arrays", "slurm", "old", "flags")
Text = Callable[[str], str]

FLAGS = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 "
    "--train-iters 10 --lr 1e-3 --data-path data --vocab-file v --merge-file m"
)


def migrated(case: str, script_text: Text) -> Migration:
    name, arguments, given = CASES[case]
    return migrate_script(script_text(name), name, arguments=arguments, given=given)


@pytest.mark.parametrize("case", CASES)
def test_the_job_is_exactly_the_golden_one(case: str, script_text: Text) -> None:
    """After a wanted change: write the new text to tests/golden and read the difference."""
    assert job_text(migrated(case, script_text)) == (GOLDEN / f"migrated-{case}.yaml").read_text()


@pytest.mark.parametrize("case", VALID)
def test_the_golden_jobs_are_valid(case: str) -> None:
    assert load_text((GOLDEN / f"migrated-{case}.yaml").read_text()).job.name


def test_what_the_arrays_say(script_text: Text) -> None:
    job = load_text(job_text(migrated("arrays", script_text))).job
    assert (job.world_size, job.data_parallel_size, job.global_batch_size) == (8, 2, 128)
    assert job.parallelism.virtual_pipeline_model_parallel_size == 4
    assert job.parallelism.uses_sequence_parallel
    assert [(entry.path, entry.weight) for entry in job.data.blend or ()] == [("/data/books", 0.3), ("/data/web", 0.7)]


def test_variables_change_what_a_script_says(script_text: Text) -> None:
    migration = migrate_script(script_text("arrays.sh"), "arrays.sh", arguments=ARGUMENTS, given={"TP": "1"})
    job = load_text(job_text(migration)).job
    assert (job.parallelism.tensor_model_parallel_size, job.global_batch_size) == (1, 256)
    assert not job.parallelism.uses_sequence_parallel


def test_what_slurm_is_asked_for(script_text: Text) -> None:
    migration = migrated("slurm", script_text)
    job = load_text(job_text(migration)).job
    assert (job.launch.nodes, job.launch.gpus_per_node, job.launch.time) == (4, 8, 36 * 3600)
    assert (job.launch.partition, job.launch.account, job.name) == ("large", "project42", "llama-8b-first")
    assert "--constraint" in " ".join(account.flag for account in migration.of("no_counterpart"))


def test_secrets_are_not_written_down(script_text: Text) -> None:
    migration = migrated("slurm", script_text)
    text = job_text(migration)
    assert "0123456789abcdef" not in text + repr(migration)
    assert load_text(text).job.launch.env["WANDB_API_KEY"] == "${env:WANDB_API_KEY}"


@pytest.mark.parametrize("name", ["MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN_PATH", "some_password", "MY_APIKEYS"])
def test_names_of_secrets(name: str) -> None:
    migration = migrate_script(f"export {name}=hidden\ntorchrun pretrain_gpt.py {FLAGS}", "x.sh")
    assert migration.values["launch.env"] == {name: f"${{env:{name}}}"}


def test_an_address_with_a_password_is_a_secret() -> None:
    script = f"export METRICS=postgres://me:pa55@host/db\ntorchrun pretrain_gpt.py {FLAGS}"
    migration = migrate_script(script, "x.sh")
    assert migration.values["launch.env"] == {"METRICS": "${env:METRICS}"}
    assert "pa55" not in repr(migration.accounts)


def test_what_slurm_sets_is_known_from_the_head_of_the_script() -> None:
    launcher = "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8"
    script = (
        f"#SBATCH --nodes=12 --gres=gpu:8\n{launcher} pretrain_gpt.py {FLAGS} --global-batch-size $((SLURM_NNODES * 8))"
    )
    migration = migrate_script(script, "x.sh")
    assert (migration.values["launch.nodes"], migration.values["batch.global_batch_size"]) == (12, 96)


def test_tokenizers_are_no_secret() -> None:
    migration = migrate_script(f"export TOKENIZERS_PARALLELISM=false\ntorchrun pretrain_gpt.py {FLAGS}", "x.sh")
    assert migration.values["launch.env"] == {"TOKENIZERS_PARALLELISM": "false"}


def test_variables_of_the_environment_are_referred_to(script_text: Text) -> None:
    assert migrated("slurm-unknown", script_text).values["launch.env"]["HF_HOME"] == "${env:SCRATCH}/hf"


def test_families_that_are_not_there_yet() -> None:
    migration = migrate_script(f"torchrun pretrain_vlm.py {FLAGS}", "vlm.sh")
    assert migration.refused is not None
    assert "multimodal" in migration.refused
    assert "GPT and BERT and T5 and Mamba" in migration.refused


def test_mamba(script_text: Text) -> None:
    migration = migrate_script(script_text("mamba.sh"), "mamba.sh")
    job = load_text(job_text(migration)).job
    assert not migration.of("not_supported")
    assert not migration.of("no_counterpart")
    assert job.model.architecture == "mamba"
    assert job.model.hybrid_override_pattern == "M-M*-M"
    assert (job.model.mamba_state_dim, job.model.mamba_num_groups, job.model.mamba_num_heads) == (16, 4, None)
    flags = to_megatron(job)
    assert flags.program == "pretrain_mamba.py"
    assert not {each.path for each in flags.unsaid if each.path.startswith("model.")}
    command = f"torchrun pretrain_mamba.py {shlex.join(flags.words)}"
    again = load_text(job_text(migrate_script(command, "again.sh"))).job
    assert again.model == job.model


def test_stages_in_letters() -> None:
    """How many chunks a stage has follows from the letters, in Megatron-LM as here."""
    starting = "torchrun --nproc-per-node 2 pretrain_gpt.py"
    letters = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|t,|t|tL' --global-batch-size 2"
    job = load_text(job_text(migrate_script(f"{starting} {FLAGS} {letters}", "x.sh"))).job
    assert job.parallelism.virtual_pipeline_model_parallel_size == 2
    words = to_megatron(job).words
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == "Et|t,|t|tL"
    assert "--num-virtual-stages-per-pipeline-rank" not in words
    again = migrate_script(f"{starting} {shlex.join(words)}", "x.sh")
    assert load_text(job_text(again)).job.parallelism == job.parallelism


def test_layers_of_another_program() -> None:
    migration = migrate_script(f"torchrun pretrain_mamba.py {FLAGS} --spec my.layers stack", "mamba.sh")
    assert [account.flag for account in migration.of("changes_training")] == ["--spec my.layers stack"]


def test_t5(script_text: Text) -> None:
    migration = migrate_script(script_text("t5.sh"), "t5.sh")
    job = load_text(job_text(migration)).job
    assert not migration.of("not_supported")
    assert not migration.of("no_counterpart")
    assert job.model.architecture == "t5"
    assert (job.model.encoder_layers, job.model.decoder_layers) == (12, 6)
    assert (job.model.seq_length, job.model.decoder_seq_length) == (512, 128)
    assert (job.parallelism.pipeline_model_parallel_size, job.parallelism.pipeline_model_parallel_split_rank) == (3, 2)
    assert job.data.tokenizer.vocab_extra_ids == 100
    command = to_megatron(job)
    words = " ".join(command.words)
    assert "--num-layers 12" in words
    assert "--decoder-num-layers 6" in words
    assert "--pipeline-model-parallel-split-rank 2" in words
    assert "parallelism.pipeline_model_parallel_size" in {each.path for each in command.unsaid}
    alone = job.changed(parallelism={"pipeline_model_parallel_size": 1, "pipeline_model_parallel_split_rank": None})
    assert "parallelism.pipeline_model_parallel_size" not in {each.path for each in to_megatron(alone).unsaid}


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        ("--pipeline-model-parallel-size 2 --encoder-pipeline-model-parallel-size 1", (3, 1)),
        ("--encoder-pipeline-model-parallel-size 2", (3, 2)),
        ("--pipeline-model-parallel-size 4 --encoder-pipeline-model-parallel-size 0", (4, None)),
        (
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-split-rank 1 "
            "--encoder-pipeline-model-parallel-size 3",
            (4, 1),
        ),
    ],
)
def test_stages_of_a_t5s_encoder(script_text: Text, words: str, stages: tuple[int, int | None]) -> None:
    old = "--pipeline-model-parallel-size 3 --pipeline-model-parallel-split-rank 2"
    script = script_text("t5.sh").replace(old, f"{words} --encoder-tensor-model-parallel-size 1")
    migration = migrate_script(script.replace("per_node 6", "per_node 12"), "t5.sh")
    job = load_text(job_text(migration)).job
    degrees = job.parallelism
    assert (degrees.pipeline_model_parallel_size, degrees.pipeline_model_parallel_split_rank) == stages
    assert job.world_size == 12
    assert not migration.of("not_supported")
    again = migrate_words(["torchrun", "--nproc-per-node", "12", "pretrain_t5.py", *to_megatron(job).words], "back")
    split = load_text(job_text(again)).job.parallelism.pipeline_model_parallel_split_rank
    assert split == (stages[1] or 2)


def test_the_encoders_degrees_are_for_a_t5(flags: Any) -> None:
    words = ["--encoder-pipeline-model-parallel-size", "1", "--encoder-tensor-model-parallel-size", "4"]
    migrated = flags(*words)
    assert migrated.outcome(words[0]) == "no_effect"
    assert migrated.outcome(words[2]) == "not_supported"
    assert migrated.job.parallelism.pipeline_model_parallel_size == 1


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("gpt-1.3b.sh", "gpt-1.3b"),
        ("scripts/llama.v2.slurm", "llama.v2"),
        ("gpt-1.3b", "gpt-1.3b"),
        ("train", "train"),
        (".sh", "sh"),
        ("???.sh", "migrated"),
    ],
)
def test_a_job_is_named_after_its_file_without_the_extension(file: str, name: str) -> None:
    assert migrate_script(f"torchrun pretrain_gpt.py {FLAGS}", file).values["name"] == name
    accelerate = migrate_accelerate("megatron_lm_config: {megatron_lm_tp_degree: 2}", file.replace("sh", "yaml"))
    assert accelerate.values["name"] == name.replace("sh", "yaml")


def test_bert(script_text: Text) -> None:
    migration = migrate_script(script_text("bert.sh"), "bert.sh")
    job = load_text(job_text(migration)).job
    assert not migration.of("not_supported")
    assert (job.model.architecture, job.model.bert_binary_head) == ("bert", False)
    assert (job.model.position_embedding_type, job.model.seq_length) == ("learned_absolute", 512)
    assert (job.data.tokenizer.type, job.data.split) == ("wordpiece", "949,50,1")
    assert (job.data.mask_prob, job.data.short_seq_prob) == (0.2, 0.1)


def test_fine_tuning_on_a_task(script_text: Text) -> None:
    """The length there is in epochs, and here in samples: it is left to be written, and nothing else is."""
    migration = migrate_script(script_text("race.sh"), "race.sh")
    assert list(migration.missing) == ["schedule.train_samples"]
    assert not migration.of("not_supported")
    assert not migration.of("no_counterpart")
    job = load_text(job_text(migration).replace('"???"', "76263")).job
    assert job.task is not None
    assert (job.task.name, job.task.train) == ("race", ["data/RACE/train/middle"])
    assert job.task.validation == ["data/RACE/dev/middle", "data/RACE/dev/high"]
    assert (job.model.architecture, job.data.blend, job.data.seed) == ("bert", None, 4321)
    assert (job.batch.micro_batch_size, job.world_size, job.sequences_per_sample) == (4, 8, 4)
    assert (job.evaluation.eval_interval, job.evaluation.eval_iters) == (100, 50)
    assert (job.schedule.lr_warmup_fraction, job.runtime.recompute_granularity) == (0.06, "full")


def test_other_tasks_are_no_trainings(script_text: Text) -> None:
    for other in ("QQP", "LAMBADA", "$TASK"):
        with refused("no_training_found"):
            migrate_script(script_text("race.sh").replace("--task RACE", f"--task {other}"), "x.sh")
    no_files = migrate_script(f"torchrun pretrain_gpt.py --train-data x --epochs 3 {FLAGS}", "x.sh")
    assert {each.flag for each in no_files.of("no_effect")} >= {"--train-data x", "--epochs 3"}


@pytest.mark.parametrize(
    "start",
    [
        "torchrun --nproc_per_node=4 --nnodes 2",
        "torchrun --nproc-per-node 4 --nnodes=2 --rdzv-backend c10d --rdzv-endpoint $HOST:1",
        "python -m torch.distributed.launch --nproc_per_node 4 --nnodes 2 --node_rank $RANK",
        "python3 -u -m torch.distributed.run --nproc_per_node 4 --nnodes 2",
        "srun -N 2 --ntasks-per-node=4 python -u",
        "srun -N 2 --gres=gpu:4 python -u",
        "srun -N 2 --gres=gpu:1g.5gb:4,tmp:20 python -u",
        "srun --nodes=2 --gres=gpu:4 torchrun --nproc_per_node $SLURM_GPUS_ON_NODE",
        "nohup env A=1 torchrun --standalone --nproc_per_node 4 --nnodes 2",
        "CUDA_DEVICE_MAX_CONNECTIONS=1 numactl -N 0 torchrun --nproc_per_node 4 --nnodes 2",
    ],
)
def test_launchers(start: str) -> None:
    script = f"#SBATCH --nodes=2 --gpus-per-node=a100:4\n{start} /opt/megatron/pretrain_gpt.py {FLAGS} 2>&1 | tee log\n"
    job = load_text(job_text(migrate_script(script, "x.sh"))).job
    assert (job.launch.nodes, job.launch.gpus_per_node) == (2, 4)


@pytest.mark.parametrize(
    ("start", "sizes"),
    [
        ("deepspeed --num_gpus 4 --num_nodes 2", (2, 4)),
        ("mpirun -np 8 --allow-run-as-root python", (1, 8)),
        ("accelerate launch --num_processes 8 --num_machines 2", (2, 4)),
        ("torchrun", (1, 1)),
    ],
)
def test_other_launchers(start: str, sizes: tuple[int, int]) -> None:
    job = load_text(job_text(migrate_script(f"{start} pretrain_gpt.py {FLAGS}", "x.sh"))).job
    assert (job.launch.nodes, job.launch.gpus_per_node) == sizes


def test_one_process_without_a_launcher() -> None:
    migration = migrate_script(f"python pretrain_gpt.py {FLAGS}", "x.sh")
    assert load_text(job_text(migration)).job.world_size == 1
    assert "without torchrun" in migration.notes[0]


def test_flags_in_variables_of_a_file_that_starts_nothing() -> None:
    text = "MODEL='--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64'\nREST=(--lr 1e-3 --bf16)"
    migration = migrate_script(text, "conf.sh")
    assert migration.values["model.num_layers"] == 4
    assert migration.values["optimizer.lr"] == 1e-3
    assert "MODEL, REST" in migration.notes[0]


def test_one_of_several_trainings_is_chosen() -> None:
    script = f"torchrun pretrain_gpt.py {FLAGS}\n\ntorchrun pretrain_gpt.py {FLAGS} --bf16\n"
    with refused("several_trainings", "2 trainings (lines 1, 3)", "--command"):
        migrate_script(script, "x.sh")
    assert "precision.dtype" not in migrate_script(script, "x.sh", which=2).values
    assert migrate_script(script, "x.sh", which=1).values["precision.dtype"] == "fp32"
    with refused("training_number_too_large", " 3"):
        migrate_script(script, "x.sh", which=3)


def test_a_command_that_is_printed_before_it_is_started_counts_once() -> None:
    command = f'CMD="pretrain_gpt.py {FLAGS}"\necho python $CMD\n'
    starts = "srun sh -c \"printf %s 'python $CMD'; echo torchrun $CMD; torchrun --nproc_per_node 2 $CMD\"\n"
    migration = migrate_script(command + starts, "x.sh")
    assert (migration.source, migration.values["launch.gpus_per_node"]) == ("x.sh:3", 2)
    assert migrate_script(command, "x.sh").source == "x.sh:2", "a script that starts nothing else"


def test_gpus_without_a_type_are_what_slurm_sets() -> None:
    script = f"#SBATCH --gres=gpu:8\ntorchrun --nproc_per_node $SLURM_GPUS_ON_NODE pretrain_gpt.py {FLAGS}"
    assert migrate_script(script, "x.sh").values["launch.gpus_per_node"] == 8


def test_an_evaluation_is_no_training() -> None:
    with refused("no_training_found"):
        migrate_script(f"torchrun tasks/eval_harness/evaluate.py {FLAGS}", "x.sh")


def test_flags_of_megatron_deepspeed() -> None:
    flags = "--position-embedding-type alibi --tokenizer-type PretrainedFromHF --tokenizer-name-or-path tokens"
    numbers = "--train-samples 220_000_000 --global-batch-size 1_024 --rampup-batch-size 192 32 9_765_625"
    values = migrate_script(f"deepspeed pretrain_gpt.py {FLAGS} {flags} {numbers}", "x.sh").values
    assert values["model.position_embedding_type"] == "alibi"
    assert (values["data.tokenizer.type"], values["data.tokenizer.path"]) == ("huggingface", "tokens")
    assert (values["schedule.train_samples"], values["batch.global_batch_size"]) == (220_000_000, 1024)
    assert values["batch.rampup_batch_size"]["samples"] == 9_765_625


def test_other_programs_are_passed_over() -> None:
    script = (
        f"python tools/preprocess_data.py --input x --vocab-file v\npip install x\ntorchrun pretrain_gpt.py {FLAGS}\n"
    )
    assert migrate_script(script, "x.sh").source == "x.sh:3"


@pytest.mark.parametrize(
    "folder",
    [
        '$(dirname "$0")',
        "`dirname $0`",
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" &> /dev/null && pwd)',
        '$(dirname "$(readlink -f "${0}")")',
    ],
)
def test_files_beside_the_script_are_sourced(folder: str) -> None:
    script = f'HERE="{folder}"\nsource "$HERE/sizes.sh"\ntorchrun pretrain_gpt.py {FLAGS} --num-layers $LAYERS'
    migration = migrate_script(script, "x.sh", read_file={"./sizes.sh": "LAYERS=6"}.get)
    assert migration.values["model.num_layers"] == 6


def test_files_elsewhere_are_named() -> None:
    script = f'source "$(cd "$(dirname "$0")/.." && pwd)/env.sh"\n. $(pick)/x.sh\ntorchrun pretrain_gpt.py {FLAGS}'
    notes = migrate_script(script, "x.sh", read_file=lambda path: "exit").notes
    assert notes[0].startswith('line 1: $(cd "$(dirname "$0")/.." && pwd)/env.sh is not read: give the variables')
    assert notes[1].startswith("line 2: $(pick)/x.sh is not read")


def test_sourced_files_are_followed() -> None:
    files = {"sizes.sh": "LAYERS=6\nreturn 0\nLAYERS=7", "args.sh": "HEADS=$1"}
    flags = f"{FLAGS} --num-layers $LAYERS --num-attention-heads $HEADS"
    script = f"source sizes.sh; . args.sh 2; . gone.sh\ntorchrun pretrain_gpt.py {flags}"
    migration = migrate_script(script, "x.sh", read_file=files.get)
    assert (migration.values["model.num_layers"], migration.values["model.num_attention_heads"]) == (6, 2)
    assert migration.notes[0].startswith("line 1: gone.sh is not read")


def test_words_that_may_hold_flags_are_listed() -> None:
    for switch in ("--use-flash-attn", "--no-load-optim", "--tensorboard-dir $LOGS"):
        migration = migrate_script(f"torchrun pretrain_gpt.py {FLAGS} {switch} $EXTRA", "x.sh")
        assert [account.flag for account in migration.of("not_known")] == ["$EXTRA"]
    migration = migrate_script(f"torchrun pretrain_gpt.py {FLAGS} --bf16 $EXTRA", "x.sh")
    assert [account.flag for account in migration.of("not_known")] == ["$EXTRA"]
    assert "--set-var EXTRA=VALUE" in (migration.of("not_known")[0].reason or "")
    more = migrate_script(
        f"torchrun pretrain_gpt.py {FLAGS} --bf16 $EXTRA", "x.sh", given={"EXTRA": "--swiglu --seed 3"}
    )
    assert (more.values["model.activation"], more.values["runtime.seed"]) == ("swiglu", 3)


def test_arguments_are_counted() -> None:
    migration = migrate_script(f"torchrun pretrain_gpt.py {FLAGS} --seed $2", "x.sh", given={"2": "9"})
    assert migration.values["runtime.seed"] == 9
    migration = migrate_script(f'shift; torchrun pretrain_gpt.py {FLAGS} "$@"', "x.sh", arguments=["x", "--seed", "8"])
    assert migration.values["runtime.seed"] == 8


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "starts no recognisable training"),
        ("echo hello", "starts no recognisable training"),
        ("bash train.sh", "starts no recognisable training"),
        ("OPTIONS='--verbose --num 3'", "starts no recognisable training"),
        (f"python tools/run_text_generation_server.py {FLAGS}", "starts no recognisable training"),
        (f"python tasks/main.py --task LAMBADA {FLAGS}", "starts no recognisable training"),
        ("torchrun pretrain_gpt.py 'oops", "x.sh:1: a quote that is not closed"),
        ("a\nb\nif true; then", "x.sh:3"),
    ],
)
def test_nothing_to_migrate(script: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        migrate_script(script, "x.sh")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_placeholders_are_to_be_written() -> None:
    script = f"DATA=<your data>_text_document\ntorchrun pretrain_gpt.py {FLAGS} --data-path $DATA"
    migration = migrate_script(script, "x.sh")
    assert migration.missing["data.blend"].endswith("(a placeholder)")


def test_values_are_those_of_the_words() -> None:
    """What a person reads in the report is what the script says, quotes and all."""
    migration = migrate_script(f"torchrun pretrain_gpt.py {FLAGS} --data-cache-path '/a b/c'", "x.sh")
    assert migration.values["data.cache_dir"] == "/a b/c"
    assert known(("x",)) == "x"
