"""The shape of the model, and how it is spread over processes."""

from __future__ import annotations

from orchestrator.kernel_selection.tensor_overlap import wants_overlap
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import MEGATRON, GivenFlags
from orchestrator.migration.report import WRITE_IT
from orchestrator.models.blocks.flags import FlagGroup
from orchestrator.spec.layout.stage_letters import layers_in_letters
from orchestrator.spec.rules.parallelism.tensor_overlap import OVERLAP

FFN, POSITIONS, GROUPS = "model.ffn_hidden_size", "model.max_position_embeddings", "model.num_query_groups"
SEQUENCE, TP, PP = (
    "parallelism.sequence_parallel",
    "parallelism.tensor_model_parallel_size",
    "parallelism.pipeline_model_parallel_size",
)
SPLIT = "parallelism.pipeline_model_parallel_split_rank"
LETTERS = "pipeline-model-parallel-layout"
VP, GATHER = "parallelism.virtual_pipeline_model_parallel_size", "parallelism.overlap_param_gather"


def _megatron_ffn(hidden: int) -> int:
    """Megatron-LM's width of a gated MLP: 8h/3 rounded down to a multiple of 64; ours is rounded up."""
    return int((4 * hidden * 2 / 3) / 64) * 64


def read_ffn(given: GivenFlags) -> None:
    if given.has("ffn-hidden-size"):
        width = given.number("ffn-hidden-size")
        if width is None:
            given.write_it("ffn-hidden-size", FFN)
        else:
            given.carry("ffn-hidden-size", FFN, width)
        return
    hidden = given.get("model.hidden_size")
    if given.get("model.activation") == "swiglu" and isinstance(hidden, int):
        width = _megatron_ffn(hidden)
        if width != -(-8 * hidden // 3 // 64) * 64:
            given.default(FFN, width, f"{MEGATRON}: 8h/3 rounded down to a multiple of 64")


def write_ffn(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.ffn_hidden_size is not None:
        writer.add("MODEL", "ffn-hidden-size", model.ffn_hidden_size)
    elif model.activation == "swiglu" and model.ffn_size != _megatron_ffn(model.hidden_size):
        writer.add("MODEL", "ffn-hidden-size", model.ffn_size)
        writer.say_otherwise(FFN, f"--ffn-hidden-size {model.ffn_size}: {MEGATRON} is another width")


def read_positions(given: GivenFlags) -> None:
    if given.has("no-position-embedding"):
        if given.get("model.position_embedding_type") == "learned_absolute":
            kind = "model.position_embedding_type"
            given.refuse_value("no-position-embedding", kind, "write none for no positions, or learned_absolute")
        else:
            given.no_effect("no-position-embedding", "--position-embedding-type says it")
    name = "max-position-embeddings"
    if not given.has(name):
        return
    positions = given.number(name)
    if positions is None:
        given.write_it(name, POSITIONS)
    elif positions == given.get("model.seq_length"):
        given.settle(name, "default", POSITIONS, positions)
    elif given.get("model.position_embedding_type") not in ("learned_absolute", WRITE_IT):
        given.no_effect(name, "only learned positions have a table")
    else:
        given.carry(name, POSITIONS, positions)


def write_positions(writer: FlagWriter) -> None:
    model = writer.job.model
    is_table = model.position_embedding_type == "learned_absolute"
    positions = model.positions if is_table else model.seq_length
    writer.add("MODEL", "max-position-embeddings", positions)
    if not is_table:
        writer.leave(POSITIONS, "only learned positions have a table")
    elif model.max_position_embeddings == model.seq_length:
        writer.say_otherwise(POSITIONS, "it is seq_length")


def read_groups(given: GivenFlags) -> None:
    """By Megatron-LM's two flags, or the one that Megatron-DeepSpeed or bigcode has."""
    heads, kind = "num-key-value-heads", "attention-head-type"
    if given.has(kind):
        if given.text(kind) is None:
            given.write_it(kind, GROUPS)
        elif given.text(kind) == "multiquery":
            given.carry(kind, GROUPS, 1)
        elif given.text(kind) == "multihead":
            given.settle(kind, "default", GROUPS, None, "every head has keys of its own")
        else:
            given.refuse_value(kind, GROUPS, "multihead and multiquery are known; write how many groups there are")
            given.no_effect((heads, "group-query-attention", "num-query-groups"), f"--{kind} is another")
            return
    if given.has(heads):
        groups = given.number(heads)
        if groups is None:
            given.write_it(heads, GROUPS)
        elif groups == given.get("model.num_attention_heads"):
            given.settle(heads, "default", GROUPS, None, "every head has keys of its own")
        else:
            given.carry(heads, GROUPS, groups)
        given.no_effect(("group-query-attention", "num-query-groups"), f"--{heads} says it")
        return
    if not given.has("group-query-attention"):
        given.no_effect("num-query-groups", "Megatron-LM takes it with --group-query-attention only")
        return
    if not given.has("num-query-groups"):
        given.carry("group-query-attention", GROUPS, 1)
        return
    groups = given.number("num-query-groups")
    if groups is None:
        given.write_it("num-query-groups", GROUPS)
    else:
        given.carry("num-query-groups", GROUPS, groups)
    given.settle("group-query-attention", "carried", GROUPS, groups)


def write_groups(writer: FlagWriter) -> None:
    groups = writer.job.model.num_query_groups
    if groups is not None and not writer.job.model.has_latent_attention:
        writer.add("MODEL", "group-query-attention")
        writer.add("MODEL", "num-query-groups", groups)


def read_sequence_parallel(given: GivenFlags) -> None:
    if not given.has("sequence-parallel"):
        return
    if given.get(TP) == 1:
        given.no_effect("sequence-parallel", "Megatron-LM turns it off where TP is 1")
    else:
        given.carry("sequence-parallel", SEQUENCE, True)


def write_sequence_parallel(writer: FlagWriter) -> None:
    parallelism = writer.job.parallelism
    if parallelism.uses_sequence_parallel:
        writer.add("MODEL_PARALLEL", "sequence-parallel")
    if not isinstance(parallelism.sequence_parallel, bool):
        writer.say_otherwise(SEQUENCE, "its degree is TP")


def read_encoder_stages(given: GivenFlags) -> None:
    """Newer releases count the encoder's stages apart: --pipeline-model-parallel-size is the decoder's then."""
    name, old = "encoder-pipeline-model-parallel-size", "pipeline-model-parallel-split-rank"
    if not given.has(name):
        return
    if not given.family.trains.is_encoder_decoder:
        given.no_effect(name, "it is for model.architecture: t5")
    elif given.has(old):
        given.no_effect(name, f"--{old} says it")
    else:
        stages, others = given.number(name), given.get(PP)
        if stages is None or not isinstance(others, int):
            given.write_it(name, SPLIT)
        elif stages == 0:
            given.settle(name, "default", SPLIT, 0)
        else:
            given.put(PP, stages + others, f"{given.flags[name].shown}, and {others} of the decoder")
            given.carry(name, SPLIT, stages)


def write_encoder_stages(writer: FlagWriter) -> None:
    """--pipeline-model-parallel-split-rank says it, to every release."""


def read_encoder_tensor_parallel(given: GivenFlags) -> None:
    name = "encoder-tensor-model-parallel-size"
    if not given.has(name):
        return
    size = given.number(name)
    if size in (0, given.get(TP)):
        given.no_effect(name, "the encoder is spread as the decoder is")
    else:
        given.not_supported(name, "both halves have the same tensor-parallel size", TP)


def write_encoder_tensor_parallel(writer: FlagWriter) -> None:
    """Both halves have one size."""


def _read_letters(given: GivenFlags) -> None:
    """What each chunk holds; how many chunks a stage has follows from it."""
    text, stages = given.text(LETTERS), given.get(PP)
    path = "parallelism.pipeline_model_parallel_layout"
    if text is None:
        given.write_it(LETTERS, path)
        return
    given.carry(LETTERS, path, text)
    layers = layers_in_letters(text, stages) if isinstance(stages, int) else None
    if layers is not None and len(layers[0]) > 1:
        given.put(VP, len(layers[0]), f"--{LETTERS}")


def read_virtual_stages(given: GivenFlags) -> None:
    by_chunks, by_layers = "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"
    if given.has(LETTERS):
        _read_letters(given)
        given.no_effect((by_chunks, by_layers), f"--{LETTERS} says it")
        return
    if given.has(by_chunks):
        chunks = given.number(by_chunks)
        if chunks is None:
            given.write_it(by_chunks, VP)
        elif chunks == 1:
            given.settle(by_chunks, "default", VP, 1)
        else:
            given.carry(by_chunks, VP, chunks)
        given.no_effect(by_layers, f"--{by_chunks} says it")
        return
    if not given.has(by_layers):
        return
    layers, total, stages = given.number(by_layers), given.get("model.num_layers"), given.get(PP)
    if layers and isinstance(total, int) and isinstance(stages, int) and total % (stages * layers) == 0:
        chunks = total // stages // layers
        if chunks == 1:
            given.settle(by_layers, "default", VP, 1)
        else:
            given.carry(by_layers, VP, chunks)
    elif layers and isinstance(total, int) and isinstance(stages, int):
        given.write_it(by_layers, VP, f"{total} layers / (PP {stages} · {layers}) is not whole")
    else:
        given.write_it(by_layers, VP)


def write_virtual_stages(writer: FlagWriter) -> None:
    letters = writer.job.parallelism.pipeline_model_parallel_layout
    chunks = writer.job.parallelism.virtual_pipeline_model_parallel_size
    if letters is not None:
        writer.add("MODEL_PARALLEL", LETTERS, letters)
    if chunks == 1:
        writer.say_otherwise(VP, "one chunk per stage is none")
    elif chunks is not None and letters is None:  # from letters Megatron-LM counts the chunks by itself
        writer.add("MODEL_PARALLEL", "num-virtual-stages-per-pipeline-rank", chunks)


def read_param_gather(given: GivenFlags) -> None:
    could = given.get("parallelism.use_distributed_optimizer") and given.get("parallelism.overlap_grad_reduce")
    if given.has("overlap-param-gather"):
        if could:
            given.settle("overlap-param-gather", "default", GATHER, True)
        else:
            given.carry("overlap-param-gather", GATHER, True)
    elif could:
        given.default(GATHER, False)


def write_param_gather(writer: FlagWriter) -> None:
    parallelism = writer.job.parallelism
    if parallelism.overlaps_param_gather:
        writer.add("MODEL_PARALLEL", "overlap-param-gather")
    could = parallelism.use_distributed_optimizer and parallelism.overlap_grad_reduce
    if parallelism.overlap_param_gather is not None and (parallelism.overlap_param_gather or not could):
        writer.say_otherwise(GATHER, "it follows by itself")


def read_tensor_overlap(given: GivenFlags) -> None:
    given.no_effect("tp-comm-overlap", "tensor parallelism overlaps automatically wherever possible")


def write_tensor_overlap(writer: FlagWriter) -> None:
    if wants_overlap(writer.job):
        writer.add("MODEL_PARALLEL", "tp-comm-overlap")
    if writer.job.parallelism.tp_comm_overlap is True:
        writer.say_otherwise(OVERLAP, "it follows by itself")
    elif writer.job.parallelism.tp_comm_overlap is False:
        writer.say_otherwise(OVERLAP, "Megatron-LM does so without the flag")


def read_data_parallel_size(given: GivenFlags) -> None:
    """Megatron-LM has no flag for it: it follows from the processes."""


def write_data_parallel_size(writer: FlagWriter) -> None:
    if writer.job.parallelism.data_parallel_size is not None:
        writer.say_otherwise("parallelism.data_parallel_size", "it follows from the number of processes")


def read_adapters(given: GivenFlags) -> None:
    """Megatron-LM has no adapters."""


def write_adapters(writer: FlagWriter) -> None:
    if writer.job.model.has_adapters:
        writer.unsaid_value("model.lora", "Megatron-LM's pretraining programs train all weights")


MODEL = (
    FlagGroup({"ffn-hidden-size": 1}, read_ffn, write_ffn, (FFN,)),
    FlagGroup(
        {"max-position-embeddings": 1, "no-position-embedding": 0}, read_positions, write_positions, (POSITIONS,)
    ),
    FlagGroup(
        {"group-query-attention": 0, "num-query-groups": 1, "num-key-value-heads": 1, "attention-head-type": 1},
        read_groups,
        write_groups,
        (GROUPS,),
    ),
    FlagGroup({"sequence-parallel": 0}, read_sequence_parallel, write_sequence_parallel, (SEQUENCE,)),
    FlagGroup(
        {"num-virtual-stages-per-pipeline-rank": 1, "num-layers-per-virtual-pipeline-stage": 1, LETTERS: 1},
        read_virtual_stages,
        write_virtual_stages,
        (VP, "parallelism.pipeline_model_parallel_layout"),
    ),
    FlagGroup({"encoder-pipeline-model-parallel-size": 1}, read_encoder_stages, write_encoder_stages, ()),
    FlagGroup(
        {"encoder-tensor-model-parallel-size": 1}, read_encoder_tensor_parallel, write_encoder_tensor_parallel, ()
    ),
    FlagGroup({"overlap-param-gather": 0}, read_param_gather, write_param_gather, (GATHER,)),
    FlagGroup({"tp-comm-overlap": 0}, read_tensor_overlap, write_tensor_overlap, (OVERLAP,)),
    FlagGroup({}, read_adapters, write_adapters, ("model.lora",)),
    FlagGroup({}, read_data_parallel_size, write_data_parallel_size, ("parallelism.data_parallel_size",)),
)
