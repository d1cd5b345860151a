"""A layout: every setting of a job that the tuner may choose, and nothing that changes what is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from orchestrator.errors import UserError
from orchestrator.spec.job import JobSpec
from orchestrator.spec.messages.suggestions import closest
from orchestrator.spec.schema.shape import leaf_paths
from orchestrator.spec.sections.runtime import RecomputedModule


class Recompute(NamedTuple):
    """What is computed again in the backward pass; the fields are those of `runtime` in a spec."""

    granularity: str | None = None
    method: str | None = None
    num_layers: int | None = None
    modules: tuple[RecomputedModule, ...] | None = None
    shared_out: bool = False
    """Whether tensor-parallel ranks share out what is recomputed from."""
    offloaded: int | None = None
    """Layers whose activations wait in the host's memory instead."""

    def describe(self) -> str:
        """`none`, `selective`, `selective core_attn mlp`, `full, block 4`, `2 layers offloaded`."""
        if self.offloaded is not None:
            return f"{self.offloaded} layers offloaded"
        if self.granularity != "full":
            return " ".join([self.granularity or "none", *(self.modules or ())])
        return f"full, {self.method} {self.num_layers}"


class Split(NamedTuple):
    """How the layers are dealt out to stages; the fields are those of `parallelism` in a spec."""

    first: int | None = None
    last: int | None = None
    embedding: bool = False
    loss: bool = False
    letters: str | None = None


NO_RECOMPUTE = Recompute()
SELECTIVE = Recompute("selective")
EVEN = Split()


class Layout(NamedTuple):
    """Degrees of parallelism, the micro-batch, and what is recomputed, joined, sharded and overlapped."""

    tp: int
    pp: int
    vp: int
    """Model chunks per stage; 1 is the plain schedule."""
    cp: int
    ep: int
    micro_batch_size: int
    sequence_parallel: bool
    use_distributed_optimizer: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool | None
    recompute: Recompute
    split: Split = EVEN
    tp_comm_overlap: bool | None = None
    joins_loss: bool = False
    """Whether the output layer and the loss are one, so that there are never all logits."""
    fsdp: Literal["full"] | int | None = None
    """Whether replicas share out weights and gradients too, or groups of so many."""

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one replica."""
        return self.tp * self.pp * self.cp


KEYS: Mapping[str, str] = {
    "parallelism.tensor_model_parallel_size": "tp",
    "parallelism.pipeline_model_parallel_size": "pp",
    "parallelism.virtual_pipeline_model_parallel_size": "vp",
    "parallelism.context_parallel_size": "cp",
    "parallelism.expert_model_parallel_size": "ep",
    "parallelism.num_layers_in_first_pipeline_stage": "split",
    "parallelism.num_layers_in_last_pipeline_stage": "split",
    "parallelism.account_for_embedding_in_pipeline_split": "split",
    "parallelism.account_for_loss_in_pipeline_split": "split",
    "parallelism.pipeline_model_parallel_layout": "split",
    "parallelism.sequence_parallel": "sequence_parallel",
    "parallelism.use_distributed_optimizer": "use_distributed_optimizer",
    "parallelism.fsdp": "fsdp",
    "parallelism.overlap_grad_reduce": "overlap_grad_reduce",
    "parallelism.overlap_param_gather": "overlap_param_gather",
    "parallelism.tp_comm_overlap": "tp_comm_overlap",
    "batch.micro_batch_size": "micro_batch_size",
    "runtime.recompute_granularity": "recompute",
    "runtime.recompute_method": "recompute",
    "runtime.recompute_num_layers": "recompute",
    "runtime.recompute_modules": "recompute",
    "runtime.distribute_saved_activations": "recompute",
    "runtime.cpu_offloading_num_layers": "recompute",
    "runtime.fused_linear_cross_entropy": "joins_loss",
}
"""What is searched: the key in a spec, and its field of a Layout."""


def layout_of(job: JobSpec) -> Layout:
    """The layout that a job has."""
    degrees, runtime = job.parallelism, job.runtime
    return Layout(
        tp=degrees.tensor_model_parallel_size,
        pp=degrees.pipeline_model_parallel_size,
        vp=degrees.num_model_chunks,
        cp=degrees.context_parallel_size,
        ep=degrees.expert_model_parallel_size,
        micro_batch_size=job.batch.micro_batch_size,
        sequence_parallel=degrees.uses_sequence_parallel,
        use_distributed_optimizer=degrees.use_distributed_optimizer,
        overlap_grad_reduce=degrees.overlap_grad_reduce,
        overlap_param_gather=degrees.overlap_param_gather,
        recompute=Recompute(
            runtime.recompute_granularity,
            runtime.recompute_method,
            runtime.recompute_num_layers,
            None if runtime.recompute_modules is None else tuple(runtime.recompute_modules),
            runtime.distribute_saved_activations,
            runtime.cpu_offloading_num_layers,
        ),
        split=Split(
            degrees.num_layers_in_first_pipeline_stage,
            degrees.num_layers_in_last_pipeline_stage,
            degrees.account_for_embedding_in_pipeline_split,
            degrees.account_for_loss_in_pipeline_split,
            degrees.pipeline_model_parallel_layout,
        ),
        tp_comm_overlap=degrees.tp_comm_overlap,
        joins_loss=runtime.fused_linear_cross_entropy,
        fsdp=degrees.fsdp,
    )


def settings_of(layout: Layout) -> dict[str, dict[str, Any]]:
    """The layout as values of a spec, by section. What follows from other values is None."""
    recompute, split = layout.recompute, layout.split
    return {
        "parallelism": {
            "tensor_model_parallel_size": layout.tp,
            "pipeline_model_parallel_size": layout.pp,
            "virtual_pipeline_model_parallel_size": layout.vp if layout.vp > 1 else None,
            "num_layers_in_first_pipeline_stage": split.first,
            "num_layers_in_last_pipeline_stage": split.last,
            "account_for_embedding_in_pipeline_split": split.embedding,
            "account_for_loss_in_pipeline_split": split.loss,
            "pipeline_model_parallel_layout": split.letters,
            "sequence_parallel": layout.sequence_parallel,
            "context_parallel_size": layout.cp,
            "expert_model_parallel_size": layout.ep,
            "data_parallel_size": None,
            "use_distributed_optimizer": layout.use_distributed_optimizer,
            "fsdp": layout.fsdp,
            "overlap_grad_reduce": layout.overlap_grad_reduce,
            "overlap_param_gather": layout.overlap_param_gather,
            "tp_comm_overlap": layout.tp_comm_overlap,
        },
        "batch": {"micro_batch_size": layout.micro_batch_size},
        "runtime": {
            "recompute_granularity": recompute.granularity,
            "recompute_method": recompute.method,
            "recompute_num_layers": recompute.num_layers,
            "recompute_modules": None if recompute.modules is None else list(recompute.modules),
            "distribute_saved_activations": recompute.shared_out,
            "cpu_offloading_num_layers": recompute.offloaded,
            "fused_linear_cross_entropy": layout.joins_loss,
        },
    }


def with_layout(job: JobSpec, layout: Layout) -> JobSpec:
    """The job with another layout. Nothing is checked: the search asks the rules itself, once per candidate."""
    return job.changed(**settings_of(layout))


def on_machines(job: JobSpec, nodes: int, gpus_per_node: int) -> JobSpec:
    """The job on that many machines, with the global batch written down, so that it stays what it is. Unchecked."""
    batch = {"global_batch_size": job.global_batch_size, "num_micro_batches": None}
    launch = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    return job.changed(batch=batch, launch=launch, parallelism={"data_parallel_size": None})


def fields_kept(keys: Iterable[str]) -> frozenset[str]:
    """The fields of a Layout that keys name, each by its path or its last part.

    Raises UserError for a key that is not searched.
    """
    short = {path.rpartition(".")[2]: path for path in KEYS}
    kept = set()
    for key in keys:
        path = key if key in KEYS else short.get(key)
        if path is None:
            raise UserError(_not_searched(key, list(short)), code="layout_not_searched")
        kept.add(KEYS[path])
    return frozenset(kept)


def _not_searched(key: str, names: list[str]) -> str:
    if key in leaf_paths() or key in ("batch.global_batch_size", "global_batch_size"):
        return f"--keep {key}: the tuner never changes it; it searches {', '.join(names)}"
    near = closest(key.rpartition(".")[2], names)
    meant = f"did you mean {' or '.join(near)}?" if near else f"it searches {', '.join(names)}"
    return f"--keep {key}: the tuner does not search this key: {meant}"
