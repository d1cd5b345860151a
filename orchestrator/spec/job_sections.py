"""Every section of a job together, and what follows from them."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, NoMegatronFlag
from orchestrator.fields.values import Name
from orchestrator.models.layers import prediction_layers
from orchestrator.spec.layout.batch import BatchSpec
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.checkpoint import CheckpointSpec
from orchestrator.spec.sections.data import DataSpec
from orchestrator.spec.sections.evaluation import EvaluationSpec
from orchestrator.spec.sections.launch import RELAUNCHED, LaunchSpec
from orchestrator.spec.sections.notifications import NotificationsSpec
from orchestrator.spec.sections.optimizer import OptimizerSpec
from orchestrator.spec.sections.precision import PrecisionSpec
from orchestrator.spec.sections.runtime import RuntimeSpec
from orchestrator.spec.sections.schedule import ScheduleSpec
from orchestrator.spec.sections.task import TaskSpec
from orchestrator.spec.sections.throughput import ThroughputSpec
from orchestrator.spec.sections.tracking import TrackingSpec


class JobSections(Section):
    """The fields of a job. What holds between them is checked by `rules`, on the way to a JobSpec."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    name: Annotated[
        Name,
        resume.forbidden("another name is another job, whose runs have a folder of their own"),
        AlsoCalled("job_name run_name"),
    ]
    """Name of the job; its runs are kept under it."""
    model: ModelSpec
    parallelism: Annotated[ParallelismSpec, resume.layout] = ParallelismSpec()
    batch: BatchSpec
    data: DataSpec
    task: TaskSpec | None = None
    optimizer: Annotated[OptimizerSpec, resume.UPDATE]
    schedule: Annotated[ScheduleSpec, resume.RATE]
    precision: PrecisionSpec = PrecisionSpec()
    checkpoint: Annotated[
        CheckpointSpec, resume.safe("when and where checkpoints are written does not touch training")
    ] = CheckpointSpec()
    evaluation: Annotated[EvaluationSpec, resume.safe("evaluation does not touch training")] = EvaluationSpec()
    tracking: Annotated[TrackingSpec, resume.safe("tracking does not touch training")] = TrackingSpec()
    throughput: Annotated[
        ThroughputSpec, resume.safe("how speed is counted does not touch training"), HashedIfChanged()
    ] = ThroughputSpec()
    notifications: Annotated[
        NotificationsSpec, resume.safe("who is told does not touch training"), HashedIfChanged()
    ] = NotificationsSpec()
    launch: Annotated[
        LaunchSpec,
        RELAUNCHED,
        NoMegatronFlag("it is about the orchestrator's way to start a run"),
    ] = LaunchSpec()
    runtime: RuntimeSpec = RuntimeSpec()

    def changed(self, **sections: Mapping[str, Any]) -> Self:
        """The job with other values of some fields, by section. They are not checked."""
        return self.model_copy(
            update={name: getattr(self, name).model_copy(update=values) for name, values in sections.items()}
        )

    @property
    def world_size(self) -> int:
        """Processes: nodes · gpus_per_node where that is written, else TP · PP · CP · DP."""
        if self.launch.gpus_per_node is not None:
            return self.launch.nodes * self.launch.gpus_per_node
        return self.parallelism.model_parallel_size * (self.parallelism.data_parallel_size or 1)

    @property
    def masks_attention(self) -> bool:
        """Whether attention takes a mask of each micro-batch's own: of packed conversations, or of images whose tokens
        attend to each other in both directions. Torch's attention takes it, with any layers."""
        return self.data.packs or self.model.attends_both_ways_in_images

    @property
    def processes_per_node(self) -> int:
        """Processes on each machine."""
        return self.world_size // self.launch.nodes

    @property
    def data_parallel_size(self) -> int:
        """Replicas: world size / (TP · PP · CP)."""
        return self.parallelism.data_parallel_size or self.world_size // self.parallelism.model_parallel_size

    @property
    def has_task(self) -> bool:
        """Whether it trains on labelled examples, with a head for them in place of the model's own."""
        return self.task is not None

    @property
    def labelled_task(self) -> TaskSpec:
        """The task of a job that has one."""
        assert self.task is not None, "the caller has asked `has_task`"
        return self.task

    @property
    def shares_embedding(self) -> bool:
        """Whether the last layers need the embedding too: as the weights of the output layer, which a task's head has
        of its own, or to predict further tokens.
        """
        model = self.model
        return not self.has_task and (bool(prediction_layers(model)) or not model.untie_embeddings_and_output_weights)

    @property
    def weight_replicas(self) -> int:
        """Ranks that hold the same weights: DP · CP."""
        return self.data_parallel_size * self.parallelism.context_parallel_size

    @property
    def is_fully_sharded(self) -> bool:
        """Whether ranks that compute with the same weights share them out."""
        return self.parallelism.fsdp is not None and self.weight_replicas > 1

    @property
    def sharded_copies(self) -> int:
        """Groups of ranks that each share out all weights of a stage, or the optimizer's state alone: one, but for
        hybrid sharding. Where replicas are no whole number of groups, as for who only reads a run on fewer ranks,
        groups have another size.
        """
        fsdp = self.parallelism.fsdp
        if fsdp is None or fsdp == "full":
            return 1
        ranks = self.weight_replicas
        return next(count for count in range(max(ranks // fsdp, 1), 0, -1) if ranks % count == 0)

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts: DP · CP · TP / (ETP · EP)."""
        degrees = self.parallelism
        spread = degrees.expert_tensor_parallel * degrees.expert_model_parallel_size
        return max(self.weight_replicas * degrees.tensor_model_parallel_size // spread, 1)

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step at full size."""
        if self.batch.global_batch_size is not None:
            return self.batch.global_batch_size
        micro_batches = self.batch.num_micro_batches or 1
        return self.batch.micro_batch_size * micro_batches * self.data_parallel_size

    @property
    def written_samples(self) -> int | None:
        """The length in samples as it is written, in samples or tokens; None for one in steps."""
        if self.schedule.train_tokens is not None:
            return -(-self.schedule.train_tokens // self.tokens_per_sample)
        return self.schedule.train_samples

    @property
    def has_per_token_loss(self) -> bool:
        """Whether each token that counts weighs the same, however the global batch is cut into micro-batches."""
        if self.batch.calculate_per_token_loss is not None:
            return self.batch.calculate_per_token_loss
        return self.data.masks_loss or self.model.family.targets_vary

    @property
    def sequences_per_sample(self) -> int:
        """Sequences that the model reads for one sample: one, or one for each option where a task has to choose."""
        return 1 if self.task is None else self.task.sequences_per_example

    @property
    def tokens_per_sample(self) -> int:
        """Tokens that the model reads for one sample, padding included."""
        return self.model.sample_length * self.sequences_per_sample

    @property
    def micro_batch_sequences(self) -> int:
        """Sequences that the model reads at once."""
        return self.batch.micro_batch_size * self.sequences_per_sample

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per step and replica at full batch size."""
        return self.global_batch_size // (self.batch.micro_batch_size * self.data_parallel_size)
