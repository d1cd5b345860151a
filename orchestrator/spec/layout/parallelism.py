"""How the model and the batch are spread over processes."""

from typing import Annotated, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag, ShortName
from orchestrator.fields.values import Positive, Text
from orchestrator.models.registry import T5

_T5 = ("model.architecture", T5.name)


class ParallelismSpec(Section):
    """Degrees of parallelism. World size = TP · PP · CP · DP."""

    tensor_model_parallel_size: Annotated[
        Positive,
        resume.parts_of_sequences,
        ShortName("tp"),
        AlsoCalled(
            "tp tp_size tp_degree tensor_parallel tensor_parallel_size tensor_parallel_degree "
            "tensor_model_parallel model_parallel_size megatron_lm_tp_degree"
        ),
        MegatronFlag(old_names=("model-parallel-size",)),
    ] = 1
    """TP: each layer's matrices are split over this many ranks."""
    pipeline_model_parallel_size: Annotated[
        Positive,
        ShortName("pp"),
        AlsoCalled(
            "pp pp_size pp_degree pipeline_parallel pipeline_parallel_size pipeline_parallel_degree "
            "pipe_parallel_size megatron_lm_pp_degree"
        ),
        MegatronFlag(),
    ] = 1
    """PP: the layers are split into this many stages (1F1B schedule)."""
    virtual_pipeline_model_parallel_size: Annotated[
        Positive | None,
        ShortName("vp"),
        AlsoCalled(
            "vp vpp vp_size virtual_pipeline_parallel_size num_layers_per_virtual_pipeline_stage "
            "num_virtual_stages_per_pipeline_rank"
        ),
    ] = None
    """VP: model chunks per stage (interleaved schedule)."""
    pipeline_model_parallel_split_rank: Annotated[Positive | None, MegatronFlag(only=_T5)] = None
    """First pipeline stage of a T5's decoder; the encoder has the stages before it; PP / 2 by default."""
    num_layers_in_first_pipeline_stage: Annotated[
        Positive | None,
        AlsoCalled("decoder_first_pipeline_num_layers"),
        MegatronFlag("decoder-first-pipeline-num-layers"),
    ] = None
    """Layers of the first stage; as many as the other stages by default."""
    num_layers_in_last_pipeline_stage: Annotated[
        Positive | None,
        AlsoCalled("decoder_last_pipeline_num_layers"),
        MegatronFlag("decoder-last-pipeline-num-layers"),
    ] = None
    """Layers of the last stage; as many as the other stages by default."""
    account_for_embedding_in_pipeline_split: Annotated[bool, MegatronFlag()] = False
    """Count the embedding as a layer when layers are assigned to stages: its chunk has one layer less, or only the
    embedding if chunks are one layer long."""
    account_for_loss_in_pipeline_split: Annotated[bool, MegatronFlag()] = False
    """Count the output layer and the loss as a layer when layers are assigned to stages."""
    pipeline_model_parallel_layout: Text | None = None
    """What each model chunk holds, in letters: `Et*3|(tt|)*2L` is the embedding and three layers, two chunks of two
    layers, and the output layer. There are PP · VP chunks, in the order in which a micro-batch passes through them."""
    sequence_parallel: Annotated[
        bool | Positive,
        ShortName("sp"),
        AlsoCalled("sp sequence_parallelism enable_sequence_parallel megatron_lm_sequence_parallelism"),
    ] = False
    """SP: shard the activations between the tensor-parallel regions along the sequence. Its degree is TP, so an integer
    is accepted only if it equals TP."""
    context_parallel_size: Annotated[
        Positive,
        resume.parts_of_sequences,
        ShortName("cp"),
        AlsoCalled("cp cp_size context_parallel_degree sequence_parallel_size"),
        MegatronFlag(old_names=("ds-sequence-parallel-size",)),
    ] = 1
    """CP: the sequence is split over this many ranks throughout."""
    expert_model_parallel_size: Annotated[
        Positive,
        ShortName("ep"),
        AlsoCalled("ep ep_size expert_parallel_size expert_parallel_degree"),
        MegatronFlag(old_names=("moe-expert-parallel-size",)),
    ] = 1
    """EP: experts are spread over this many ranks of a stage."""
    expert_tensor_parallel_size: Positive | None = None
    """ETP: each expert's matrices are split over this many ranks; TP by default. With 1, an expert is complete, and the
    tensor-parallel ranks hold different ones."""
    data_parallel_size: Annotated[
        Positive | None,
        resume.replicas,
        ShortName("dp"),
        AlsoCalled("dp dp_size data_parallel_degree data_parallel_replicate_degree data_parallel_shard_degree"),
    ] = None
    """DP: replicas; world size / (TP · PP · CP) by default."""
    use_distributed_optimizer: Annotated[
        bool,
        resume.distributed_optimizer,
        AlsoCalled("distributed_optimizer megatron_lm_use_distributed_optimizer zero_optimization zero_stage"),
        MegatronFlag(default=False),
    ] = True
    """Shard the optimizer's state over the data- and context-parallel ranks."""
    fsdp: Annotated[
        Literal["full"] | Positive | None,
        AlsoCalled(
            "fully_sharded_data_parallel fully_shard use_fsdp use_megatron_fsdp use_torch_fsdp2 "
            "data_parallel_sharding_strategy fsdp_sharding_strategy sharding_strategy"
        ),
        HashedIfChanged(),
    ] = None
    """FSDP (ZeRO-3): `full` shards weights and gradients too over the data- and context-parallel ranks, a number over
    groups of so many of them (hybrid sharding). Each layer's weights are gathered before its forward pass and again
    before its backward pass (no effect at DP · CP = 1)."""
    overlap_grad_reduce: Annotated[bool, resume.TIMING, AlsoCalled("overlap_comm"), MegatronFlag(default=False)] = True
    """Reduce gradients while the backward pass still runs (no effect at DP · CP = 1)."""
    overlap_param_gather: Annotated[bool | None, resume.TIMING] = None
    """Gather updated parameters while the forward pass starts (no effect at DP · CP = 1). It needs the distributed
    optimizer and `overlap_grad_reduce`, and is on by default if both are on."""
    tp_comm_overlap: Annotated[bool | None, resume.TIMING, HashedIfChanged()] = None
    """Overlap the communication of sequence parallelism with the matrix products, piece by piece, with Transformer
    Engine's layers on the GPUs of one machine (no effect at TP = 1). On by default wherever possible; `true` requires
    it."""

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
