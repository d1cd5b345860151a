"""How the model and the batch are spread over processes."""

from __future__ import annotations

from orchestrator.spec.base import Section
from orchestrator.spec.values import Positive, Text


class ParallelismSpec(Section):
    """Degrees of parallelism. World size = TP · PP · CP · DP."""

    tensor_model_parallel_size: Positive = 1
    """TP: each layer's matrices are split over this many ranks."""
    pipeline_model_parallel_size: Positive = 1
    """PP: the layers are split into this many stages (1F1B schedule)."""
    virtual_pipeline_model_parallel_size: Positive | None = None
    """VP: model chunks per stage (interleaved schedule)."""
    pipeline_model_parallel_split_rank: Positive | None = None
    """The first pipeline stage of a T5's decoder: the encoder has those before it; PP / 2 by default."""
    num_layers_in_first_pipeline_stage: Positive | None = None
    """Layers of the first stage; as many as the other stages by default."""
    num_layers_in_last_pipeline_stage: Positive | None = None
    """Layers of the last stage; as many as the other stages by default."""
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as a layer when the layers are dealt out: its chunk has one less, and is the embedding alone
    where a chunk is one layer long."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the output layer and the loss as a layer when the layers are dealt out."""
    pipeline_model_parallel_layout: Text | None = None
    """What each model chunk holds, in letters: `Et*3|(tt|)*2L` is the embedding and three layers, two chunks of two
    layers, and the output layer. Chunks in the order in which a micro-batch passes them, PP · VP of them."""
    sequence_parallel: bool | Positive = False
    """SP: shard what lies between the tensor-parallel regions along the sequence. Its degree is TP, so an integer
    is accepted only if it equals TP."""
    context_parallel_size: Positive = 1
    """CP: the sequence is split over this many ranks throughout."""
    expert_model_parallel_size: Positive = 1
    """EP: experts are spread over this many of the ranks of a stage."""
    expert_tensor_parallel_size: Positive | None = None
    """ETP: each expert's matrices are split over this many ranks; TP by default. With 1, an expert is whole, and the
    tensor-parallel ranks hold different ones."""
    data_parallel_size: Positive | None = None
    """DP: replicas; world size / (TP · PP · CP) by default."""
    use_distributed_optimizer: bool = True
    """Shard the optimizer's state over the data- and context-parallel ranks."""
    overlap_grad_reduce: bool = True
    """Reduce gradients while the backward pass still runs (no effect at DP · CP = 1)."""
    overlap_param_gather: bool | None = None
    """Gather updated parameters while the forward pass starts (no effect at DP · CP = 1). It needs the distributed
    optimizer and `overlap_grad_reduce`, and is on by default where both are."""
    tp_comm_overlap: bool | None = None
    """Send what sequence parallelism gathers and sums while the matrices are multiplied, piece by piece, with
    Transformer Engine's layers on the GPUs of one machine (no effect at TP = 1). On by default where nothing stands in
    the way; `true` demands it."""

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one replica: TP · PP · CP."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def expert_tensor_parallel(self) -> int:
        """Ranks that each expert is split over."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def num_model_chunks(self) -> int:
        """Model chunks per stage."""
        return self.virtual_pipeline_model_parallel_size or 1

    @property
    def overlaps_param_gather(self) -> bool:
        """Whether parameters are gathered while the forward pass starts."""
        if self.overlap_param_gather is None:
            return self.use_distributed_optimizer and self.overlap_grad_reduce
        return self.overlap_param_gather

    @property
    def uses_sequence_parallel(self) -> bool:
        """Whether sequence parallelism is on, however it was written."""
        return self.sequence_parallel is True or (
            self.sequence_parallel is not False and int(self.sequence_parallel) > 1
        )
