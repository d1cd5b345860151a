"""Out to Megatron-LM and back in: the same weights, logits, optimizer and losses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Commands
from support.faults import CommandLine, Ranks
from support.training import events, largest_difference, layout, losses, make_run, tiny_job

from orchestrator.conversion.staging import draft_of
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.data.indexed_dataset.locking import locked
from orchestrator.run_directory.checkpoints.commit_markers import verify
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains, converts with the commands, and trains again")]

PROGRAM = Path(__file__).parent / "megatron_program.py"
HALF, WHOLE = 2, 5


def job_at(parallelism: dict[str, Any]) -> JobSpec:
    return tiny_job(
        "model",
        model={"activation": "swiglu", "untie_embeddings_and_output_weights": True, "num_query_groups": 2},
        schedule={"train_iters": WHOLE},
        checkpoint={"save_interval": HALF, "keep_last": 5},
        parallelism=parallelism,
    )


@pytest.fixture(scope="module")
def whole(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = job_at(layout(tp=2, pp=2))
    return ranks.must_train(make_run(tmp_path_factory.mktemp("whole"), job), job)


@pytest.fixture(scope="module")
def exported(ranks: Ranks, whole: RunDir, commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the command, at TP 2 and PP 2."""
    orchestrator = CommandLine(tmp_path_factory.mktemp("exported"), commands, ranks)
    said = orchestrator("checkpoint", "export", whole.checkpoint(HALF), "out", "--to", "megatron-lm")
    assert said.code == 0, said.err
    return orchestrator.folder / "out"


def test_there_and_back(ranks: Ranks, orchestrator: CommandLine, whole: RunDir, exported: Path, tmp_path: Path) -> None:
    """Loaded and saved at TP 2 as Megatron-LM does, imported with the job by the command, gone on with at DP 2 by the
    command that the import names: the losses are those of the run that was left alone.
    """
    theirs = tmp_path / "theirs"
    resolved = tmp_path / "tp2.json"
    resolved.write_text(dump_resolved(job_at(layout(tp=2))))
    places = (theirs, resolved, whole.checkpoint(HALF), tmp_path / "found.pt")
    arguments = map(str, places)
    started = ranks.starter.start(exported, 2, *arguments, program=PROGRAM)
    assert started.wait() == 0
    found = torch.load(tmp_path / "found.pt")
    assert found["scheduler"]["num_steps"] == HALF * 8
    assert found["scheduler"]["max_lr"] == pytest.approx(1e-3)
    theirs_logits, own_logits = (found[name][..., :250] for name in ("logits", "ours"))
    assert own_logits.std() > 0.1
    assert torch.allclose(theirs_logits, own_logits, atol=1e-5)

    job = job_at(layout(dp=2))
    said = orchestrator("checkpoint", "import", theirs, "--job", orchestrator.write(job), "--json")
    assert said.code == 0, said.err
    answer = json.loads(said.out)
    assert (answer["iteration"], answer["optimizer"]) == (HALF, True)
    run = RunDir(Path(answer["run"]))
    assert verify(run.checkpoint(HALF)) == []
    before, after = StoredWeights(whole.checkpoint(HALF)), StoredWeights(run.checkpoint(HALF))
    assert before.keys() == after.keys()
    for key in before.keys():  # noqa: SIM118 - it is no mapping
        assert torch.equal(before.read(key, ()), after.read(key, ())), key
    assert not [key for key in after.objects() if key.startswith("rng")]
    said = orchestrator("resume", run.run_id)
    assert said.code == 0, said.out + said.err
    assert [event["iteration"] for event in events(run, "resumed")] == [HALF]
    expected = {step: loss for step, loss in losses(whole).items() if step > HALF}
    assert largest_difference(expected, losses(run)) < 1e-5


def test_weights_alone_need_no_job(orchestrator: CommandLine, whole: RunDir, exported: Path) -> None:
    """The network is what the checkpoint's arguments say."""
    assert (exported / "latest_checkpointed_iteration.txt").read_text() == str(HALF)
    said = orchestrator("checkpoint", "import", exported, "--name", "theirs", "--json")
    assert said.code == 0, said.err
    assert "the tokenizer of" in said.err
    run = RunDir(Path(json.loads(said.out)["run"]))
    resumed = orchestrator("resume", run.run_id)
    assert resumed.code == 2
    assert "it holds weights and no optimizer, and cannot be resumed" in resumed.err
    model, expected = load_resolved(run.resolved()).model, job_at({}).model
    assert (model.activation, model.query_groups, model.ffn_size) == ("swiglu", 2, expected.ffn_size)
    assert (model.untie_embeddings_and_output_weights, model.vocab_size) == (True, 250)
    before, after = StoredWeights(whole.checkpoint(HALF)), StoredWeights(run.checkpoint(0))
    assert after.keys() == [key for key in before.keys() if not key.startswith("optimizer.")]  # noqa: SIM118


def test_an_export_that_another_process_writes(orchestrator: CommandLine, whole: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "held"
    draft = draft_of(target)
    (draft / "draft").mkdir(parents=True)
    with locked(draft, wait=False):
        said = orchestrator("checkpoint", "export", whole.path, target, "--to", "megatron-lm")
    assert (said.code, said.out) == (2, "")
    assert f"another process is writing {target} now; wait for it, or name another folder" in said.err
    assert (draft / "draft").is_dir()


class Call:
    """A pickle that makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def test_arguments_that_would_run_are_not_read(orchestrator: CommandLine, exported: Path, tmp_path: Path) -> None:
    """The weights come in with a job all the same."""
    checkpoint = shutil.copytree(exported, tmp_path / "planted") / f"iter_{HALF:07d}"
    torch.save({"iteration": HALF, "args": Call(tmp_path / "ran")}, checkpoint / "common.pt")
    said = orchestrator("checkpoint", "import", tmp_path / "planted")
    assert said.code == 2
    assert f"{checkpoint / 'common.pt'} cannot be read: it names posix.mkdir" in said.err
    said = orchestrator("checkpoint", "import", tmp_path / "planted", "--job", orchestrator.write(job_at({})))
    assert said.code == 0, said.err
    assert "is not imported" in said.err
    assert not (tmp_path / "ran").exists()


def test_a_decoder_does_not_become_one_that_sees(orchestrator: CommandLine, exported: Path) -> None:
    job = job_at({})
    sees = tiny_job(
        "sees",
        model={**job.model.model_dump(), "vision": {"image_size": 16, "patch_size": 8}},
    )
    said = orchestrator("checkpoint", "import", exported, "--job", orchestrator.write(sees))
    assert (said.code, said.out) == (2, "")
    assert "is a decoder, and sees has images (model.vision): import it without --job" in said.err
