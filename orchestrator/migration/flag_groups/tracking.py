"""Where metrics go, and what the run is called there."""

from __future__ import annotations

from orchestrator.migration.flag_groups.training import as_name
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.migration.report import Source
from orchestrator.models.blocks.flags import FlagGroup

WANDB, PROJECT, ENTITY = "tracking.wandb", "tracking.wandb.project", "tracking.wandb.entity"
MODE = "tracking.wandb.mode"
TENSORBOARD = "tracking.tensorboard"


def read_tracking(given: GivenFlags) -> None:
    """Megatron-LM sends to W&B where a project is named, and writes for TensorBoard where a folder is."""
    _read_name(given)
    if given.has("wandb-project") and given.text("wandb-project") != "":
        _read_wandb(given)
    given.no_effect("wandb-project", "an empty name sends nothing to W&B")
    given.no_effect("wandb-entity", "without --wandb-project nothing goes to W&B")
    given.no_effect("wandb-save-dir", "what W&B's library keeps is in the run directory, in wandb/")
    if given.text("tensorboard-dir") == "":
        given.no_effect("tensorboard-dir", "an empty path writes nothing")
    elif given.has("tensorboard-dir"):
        folder = "the folder is always tensorboard/ in the run directory"
        given.settle("tensorboard-dir", "carried", TENSORBOARD, True, folder)
        given.put(TENSORBOARD, True, f"{given.flags['tensorboard-dir'].shown}; {folder}")


def _read_wandb(given: GivenFlags) -> None:
    for name, path in (("wandb-project", PROJECT), ("wandb-entity", ENTITY)):
        text = given.text(name)
        if text:
            given.carry(name, path, text)
        elif text is None and given.has(name):
            given.write_it(name, path)
    given.no_effect("wandb-entity", "an empty name is none")
    if given.get(PROJECT) is None:  # only the name is not known: that W&B is asked for is
        given.migration.values[MODE] = "online"
        given.migration.sources[MODE] = Source(given.flags["wandb-project"].shown)


def _read_name(given: GivenFlags) -> None:
    if given.has("wandb-exp-name"):
        text = given.text("wandb-exp-name")
        value = as_name(text) if text is not None else None
        if value:
            given.carry("wandb-exp-name", "name", value)
        else:
            given.no_effect("wandb-exp-name", "it is only a name")


def write_tracking(writer: FlagWriter) -> None:
    for name in ("mlflow", "uri", "experiment", "tags"):
        writer.leave(f"tracking.{name}", "Megatron-LM knows no MLflow")
    job = writer.job
    folder = f"{job.launch.runs_dir}/{job.name}/megatron-lm"
    if job.tracking.tensorboard:
        writer.add("EVALUATION", "tensorboard-dir", f"{folder}/tensorboard")
    wandb = job.tracking.wandb
    if wandb is None:
        return
    project = wandb.project or job.tracking.experiment or job.name
    writer.add("EVALUATION", "wandb-project", project)
    if wandb.project is None:
        writer.say_otherwise(PROJECT, f"--wandb-project {project}")
    writer.add("EVALUATION", "wandb-exp-name", job.name)  # Megatron-LM refuses a project without it
    writer.add("EVALUATION", "wandb-save-dir", f"{folder}/wandb")
    if wandb.entity is not None:
        writer.add("EVALUATION", "wandb-entity", wandb.entity)
    if wandb.mode != "online":
        writer.unsaid_value(MODE, f"Megatron-LM has no flag for it: export WANDB_MODE={wandb.mode}")


TRACKING = (
    FlagGroup(
        {"wandb-project": 1, "wandb-exp-name": 1, "wandb-entity": 1, "wandb-save-dir": 1, "tensorboard-dir": 1},
        read_tracking,
        write_tracking,
        (
            *("name", "tracking.mlflow", "tracking.uri", "tracking.experiment", "tracking.tags"),
            *(TENSORBOARD, WANDB),
        ),
    ),
)
