"""What corresponds to each Megatron-LM flag that makes a training faster or smaller, and to the fields behind them.

The names are those of the argument parsers of core_v0.16.1 and core_v0.19.0, and of megatron-core's configurations
in the same versions. Behind a name, `=` says that it takes a value, `=*` any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Answer = Literal["key", "on", "refused", "training"]
ANSWERS: dict[Answer, str] = {
    "key": "a key of the spec",
    "on": "always on where it applies",
    "refused": "not in this version; training gives the same results without, but may be slower or need more memory",
    "training": "not in this version, and another training without: `migrate` says so and gives exit code 2",
}


_FLAGS: dict[Answer, dict[str, str]] = {
    "key": {
        "runtime.layers": "transformer-impl= use-te-activation-func",
        "runtime.attention_backend": "attention-backend=",
        "runtime.gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
        "runtime.recompute_granularity, recompute_method, recompute_num_layers, recompute_modules, "
        "distribute_saved_activations": """
            recompute-granularity= recompute-method= recompute-num-layers= recompute-modules=* recompute-activations
            checkpoint-activations distribute-saved-activations""",
        "runtime.cpu_offloading_num_layers": "cpu-offloading-num-layers=",
        "parallelism.tensor_model_parallel_size, sequence_parallel, context_parallel_size, "
        "expert_model_parallel_size, expert_tensor_parallel_size": """
            tensor-model-parallel-size= model-parallel-size= sequence-parallel context-parallel-size=
            expert-model-parallel-size= expert-tensor-parallel-size=""",
        "parallelism.pipeline_model_parallel_size, virtual_pipeline_model_parallel_size, and the layers of "
        "each stage": """
            pipeline-model-parallel-size= num-layers-per-virtual-pipeline-stage= num-virtual-stages-per-pipeline-rank=
            pipeline-model-parallel-layout= decoder-first-pipeline-num-layers= decoder-last-pipeline-num-layers=
            account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split""",
        "parallelism.use_distributed_optimizer, overlap_grad_reduce, overlap_param_gather: on by default": """
            use-distributed-optimizer overlap-grad-reduce overlap-param-gather""",
        "parallelism.fsdp": """
            use-megatron-fsdp data-parallel-sharding-strategy= use-torch-fsdp2 torch-fsdp2-no-reshard-after-forward""",
        "parallelism.tp_comm_overlap: on where the plan finds it faster": "tp-comm-overlap",
        "optimizer.exp_avg_dtype, exp_avg_sq_dtype: fp32 or bf16": """
            use-precision-aware-optimizer exp-avg-dtype= exp-avg-sq-dtype=""",
        "optimizer.offload_fraction: state comes to the GPU in blocks, which updates it": """
            optimizer-cpu-offload optimizer-offload-fraction= use-torch-optimizer-for-cpu-offload
            overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params""",
        "precision.dtype": "bf16 fp16",
        "precision.fp8": "fp8-format= fp8-recipe= fp8-margin= fp8-amax-history-len= fp8-amax-compute-algo=",
        "precision.fp4": "fp4-format= fp4-recipe=",
        "precision.fp8, precision.fp4: num_layers_at_start_in_bf16, num_layers_at_end_in_bf16": """
            first-last-layers-bf16 num-layers-at-start-in-bf16= num-layers-at-end-in-bf16=""",
        "precision.grad_reduce_in_fp32": "grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32",
        "batch.micro_batch_size": "micro-batch-size= batch-size=",
        "model.moe_grouped_gemm: on with Transformer Engine's layers": "moe-grouped-gemm",
        "model.moe_token_dispatcher_type, moe_expert_capacity_factor": """
            moe-token-dispatcher-type= moe-expert-capacity-factor=""",
        "checkpoint.async_save: on by default": "async-save",
        "data.num_workers, num_dataset_builder_threads": "num-workers= num-dataset-builder-threads=",
        "tracking.log_interval": "log-interval=",
        "model.activation: the fused GeLU is gelu_tanh": "no-bias-gelu-fusion",
    },
    "on": {
        "threads write checkpoints while the training goes on, where checkpoint.async_save is on": """
            async-strategy= async-ckpt-cpu-priority= async-ckpt-io-priority= async-ckpt-use-cpu-shm""",
        "each rank loads and saves what it holds": """
            ckpt-fully-parallel-load-exchange-algo= ckpt-fully-parallel-load-process-group=
            ckpt-fully-parallel-save-process-group= distrib-optim-fully-reshardable-mem-efficient""",
        "the fastest available attention is used (runtime.attention_backend)": """
            use-flash-attn flash-attention-version=""",
        "CUDA graphs are used where the plan finds them faster (runtime.cuda_graphs)": """
            enable-cuda-graph external-cuda-graph cuda-graph-impl= cuda-graph-scope=* cuda-graph-modules=*
            cuda-graph-warmup-steps= te-rng-tracker""",
        "Transformer Engine's fused kernels are used with its layers, unless the job is deterministic, routes "
        "by sinkhorn or scores in fp64": "moe-permute-fusion moe-router-fusion",
        "Transformer Engine's grouped GEMM is used instead": "moe-use-legacy-grouped-gemm",
        "the cross entropy is one fused kernel per pass on GPUs": """
            cross-entropy-loss-fusion cross-entropy-fusion-impl=""",
        "RoPE, bias + activation, bias + dropout + add and norms are fused on GPUs": """
            no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion no-persist-layer-norm disable-jit-fuser
            disable-bf16-reduced-precision-matmul""",
        "the softmax is part of the attention kernel": "no-masked-softmax-fusion",
        "garbage is collected once a step, at the same point on every rank": """
            manual-gc manual-gc-interval= no-manual-gc-eval disable-manual-gc-eval""",
        "NaN and infinity are detected in the gradient norm, without waiting for the loss": """
            no-check-for-nan-in-loss-and-grad""",
        "stages send while they compute, and free outputs that were sent": "no-overlap-p2p-communication",
        "ranks communicate over NCCL on GPUs and over gloo on CPUs": "distributed-backend=",
        "with tensor parallelism each rank of a stage sends only its part": "no-scatter-gather-tensors-in-pipeline",
        "input gradients are reduced during the weight-gradient GEMM": """
            no-async-tensor-model-parallel-allreduce disable-async-tensor-model-parallel-allreduce""",
        "the plan chooses the bucket size, and stages start their buckets together": """
            ddp-num-buckets= ddp-bucket-size= no-align-grad-reduce disable-align-grad-reduce no-align-param-gather
            no-gradient-reduce-div-fusion""",
        "parallelism.tp_comm_overlap switches on every supported kind of overlap": """
            disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-bulk-dgrad
            disable-tp-comm-bulk-wgrad disable-tp-comm-split-ag disable-tp-comm-split-rs no-tp-comm-overlap-ag
            no-tp-comm-overlap-rs no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-split-ag
            no-tp-comm-split-rs""",
        "torch's allocator uses expandable segments and has no fragments to free": """
            empty-unused-memory-level= no-clone-scatter-output-in-embedding
            disable-clone-scatter-output-in-embedding""",
        "weights are initialized on the GPU, each rank its own part": """
            use-cpu-initialization init-model-with-meta-device no-initialization""",
        "checkpoints are distributed, written in parallel and committed atomically": """
            ckpt-fully-parallel-save ckpt-fully-parallel-load no-ckpt-fully-parallel-save
            disable-ckpt-fully-parallel-save ckpt-assume-constant-structure use-persistent-ckpt-worker
            dist-ckpt-workers=""",
        "data is memory-mapped, each rank reads only what it needs, and no mask is built": """
            no-mmap-bin-files dataloader-fast-cache-load dataloader-defer-npy-index-mmap
            no-create-attention-mask-in-dataloader mid-level-dataset-surplus=""",
        "timers do not wait for each other": "no-barrier-with-level-1-timing",
        "the host is never more than one step ahead of its GPU": "train-sync-interval=",
    },
    "refused": {
        "the squared ReLU of experts is not fused": "use-fused-weighted-squared-relu",
        "SSM states are in the model's precision, and there is no layer-wise optimizer": """
            mamba-training-ssm-states-dtype=""",
        "the token exchange of experts overlaps with nothing: not with shared experts, the next micro-batch or "
        "delayed weight gradients": """
            moe-shared-expert-overlap overlap-moe-expert-parallel-comm delay-wgrad-compute
            ep-overlap-early-attn-memory-release high-priority-a2a-comm-stream
            overlap-dispatch-backward-with-experts-wgrad""",
        "this version has the dispatchers alltoall and allgather": """
            moe-enable-deepep moe-deepep-num-sms= moe-flex-dispatcher-backend= moe-flex-dispatcher-num-sms=
            moe-hybridep-num-sms= moe-hybridep-num-sms-preprocessing= moe-hybridep-num-blocks-permute=
            moe-hybridep-num-blocks-unpermute= moe-hybridep-pad-uneven-dispatch-inputs
            moe-permute-fusion-into-hybridep moe-ncclep-static-shape moe-ncclep-zero-copy""",
        "experts get a varying number of tokens: they are not padded to a capacity or for FP8, and nothing "
        "is paged": """
            moe-pad-expert-input-to-capacity moe-router-padding-for-fp8 moe-router-padding-for-quantization
            moe-paged-stash moe-paged-stash-page-size= moe-paged-stash-buffer-size-factor-cpu=
            moe-paged-stash-buffer-size-factor-cuda=""",
        "each expert has its own weight tensor, and a dense MLP is a plain GEMM": """
            moe-single-grouped-weight moe-single-grouped-bias moe-mlp-glu-interleave-size=
            moe-shared-expert-glu-interleave-size= use-grouped-gemm-for-dense-mlp use-grouped-gemm-for-shared-expert""",
        "write runtime.recompute_granularity: selective and runtime.recompute_modules: [moe]": "moe-layer-recompute",
        "embedding gradients are computed without delay": "defer-embedding-wgrad-compute wgrad-deferral-limit=",
        "parameters are gathered at their first use, and stages send in the order of the schedule": """
            overlap-param-gather-with-optimizer-step overlap-p2p-communication-warmup-flush
            microbatch-group-size-per-virtual-pipeline-stage=""",
        "Transformer Engine's default overlap settings are used": """
            tp-comm-overlap-cfg= tp-comm-overlap-rs-dgrad tp-comm-bootstrap-backend=""",
        "NCCL is configured by its own variables in launch.env; its standard collectives are used": """
            use-nccl-ub use-sharp sharp-enabled-group= nccl-communicator-config-path= high-priority-stream-groups=*
            ddp-pad-buckets-for-high-nccl-busbw ddp-reduce-scatter-with-fp32-accumulation
            ddp-param-name-patterns-for-fp32-local-accumulation=* disable-gloo-process-groups create-all-gather-group
            use-ring-exchange-p2p pipeline-model-parallel-comm-backend= use-tp-pp-dp-mapping symmetric-ar-type=
            disable-symmetric-registration""",
        "the average over replicas is part of the loss: no gradient is multiplied by it": "ddp-average-in-collective",
        "context parallelism sends keys and values around a ring": """
            cp-comm-type=* hierarchical-context-parallel-sizes=* hybrid-context-parallel max-seqlen-per-dp-cp-rank=""",
        "the main copy of the weights and their gradients are in fp32, and all replicas share them out": """
            main-grads-dtype= main-params-dtype= optimizer-cuda-graph""",
        "replicas in groups that each shard all weights are parallelism.fsdp: N, for N ranks in a group": """
            num-distributed-optimizer-instances=""",
        "FSDP is parallelism.fsdp, without options": """
            outer-dp-sharding-strategy= fsdp-double-buffer fsdp-db-use-persist-buf-on-alloc-fail
            fsdp-manual-registration suggested-communication-unit-size= keep-fp8-transpose-cache
            enable-full-sharding-in-hsdp megatron-fsdp-enable-fine-grained-param-gather megatron-fsdp-grad-comm-dtype=
            megatron-fsdp-main-grads-dtype= megatron-fsdp-main-params-dtype= megatron-fsdp-max-pool-double-buffer
            expert-tensor-parallel-num-weight-shards= tensor-parallel-num-weight-shards=""",
        "FP8 and FP4 are for the layers' matrix products, with the recipes of Transformer Engine": """
            fp8-quantizer-factory= fp4-quantizer-factory= kitchen-attention-backend=""",
        "weights stay in bf16, with an additional copy in FP8 or FP4": """
            fp8-param-gather fp4-param-gather reuse-grad-buf-for-mxfp8-param-ag""",
        "Transformer Engine 2 ignores it: weight gradients are computed in FP8 too": """
            no-fp8-wgrad disable-fp8-wgrad""",
        "activations are offloaded to the host by entire layers (runtime.cpu_offloading_num_layers)": """
            fine-grained-activation-offloading fine-grained-offloading-max-inflight-offloads= offload-modules=*
            min-offloaded-tensor-size= activation-offload-fraction= delta-offload-bytes-across-pp-ranks=
            cpu-offloading-retain-pinned-cpu-buffers delay-offload-until-cuda-graph""",
        "Transformer Engine's standard norms are used": """
            use-transformer-engine-op-fuser fused-residual-rmsnorm mla-down-proj-fusion""",
        "a micro-batch is not split into chunks within a layer": "mlp-chunks-for-training= disable-mamba-mem-eff-path",
        "experimental features of megatron-core are not used": "enable-experimental",
    },
    "training": {
        "precision.fp8 has one recipe for the layers' matrix products": """
            fp8-output-proj te-precision-config-file= use-kitchen-attention""",
        "tokens are dropped by model.moe_expert_capacity_factor alone": "moe-expert-rank-capacity-factor=",
    },
}
"""Flags by answer and reason. The reason is the keys, or what happens instead."""
_FIELDS: dict[str, str] = {
    "SSM states are in the model's precision, and there is no layer-wise optimizer": """
        use_layer_wise_distributed_optimizer""",
    "runtime.layers": "use_kitchen",
    "parallelism.fsdp": "use_megatron_fsdp data_parallel_sharding_strategy",
    "runtime.gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "runtime.cpu_offloading_num_layers": """
        cpu_offloading _cpu_offloading_context cpu_offloading_activations cpu_offloading_weights""",
    "CUDA graphs are used where the plan finds them faster (runtime.cuda_graphs)": """
        cuda_graph_retain_backward_graph cuda_graph_use_single_mempool use_te_rng_tracker""",
    "parallelism.pipeline_model_parallel_size, virtual_pipeline_model_parallel_size, and the layers of each stage": """
        virtual_pipeline_model_parallel_size num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage""",
    "precision.dtype": "params_dtype pipeline_dtype",
    "precision.fp8": "fp8 tp_only_amax_red",
    "precision.fp4": "fp4",
    "precision.grad_reduce_in_fp32": "grad_reduce_in_fp32",
    "RoPE, bias + activation, bias + dropout + add and norms are fused on GPUs": """
        apply_rope_fusion bias_activation_fusion bias_dropout_fusion persist_layer_norm fused_single_qkv_rope""",
    "the softmax is part of the attention kernel": "masked_softmax_fusion",
    "NaN and infinity are detected in the gradient norm, without waiting for the loss": """
        check_for_nan_in_grad""",
    "stages send while they compute, and free outputs that were sent": """
        overlap_p2p_comm batch_p2p_comm batch_p2p_sync deallocate_pipeline_outputs""",
    "input gradients are reduced during the weight-gradient GEMM": "async_tensor_model_parallel_allreduce",
    "the plan chooses the bucket size, and stages start their buckets together": """
        bucket_size num_buckets gradient_reduce_div_fusion align_param_gather""",
    "parallelism.tp_comm_overlap switches on every supported kind of overlap": """
        tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_bulk_dgrad tp_comm_bulk_wgrad tp_comm_split_ag tp_comm_split_rs
        tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_overlap_disable_qkv tp_comm_overlap_disable_fc1""",
    "torch's allocator uses expandable segments and has no fragments to free": "clone_scatter_output_in_embedding",
    "weights are initialized on the GPU, each rank its own part": "perform_initialization",
    "timers do not wait for each other": "barrier_with_L1_time",
    "parameters are gathered at their first use, and stages send in the order of the schedule": """
        overlap_p2p_comm_warmup_flush microbatch_group_size_per_vp_stage
        num_microbatches_with_partial_activation_checkpoints""",
    "NCCL is configured by its own variables in launch.env; its standard collectives are used": """
        nccl_ub pad_buckets_for_high_nccl_busbw reduce_scatter_with_fp32_accumulation
        param_name_patterns_for_fp32_local_accumulation""",
    "the average over replicas is part of the loss: no gradient is multiplied by it": "average_in_collective",
    "optimizer.offload_fraction: state comes to the GPU in blocks, which updates it": "pin_cpu_grads pin_cpu_params",
    "the main copy of the weights and their gradients are in fp32, and all replicas share them out": """
        store_param_remainders""",
    "FSDP is parallelism.fsdp, without options": """
        use_custom_fsdp fsdp_all_gather_in_start_param_sync megatron_fsdp_use_decoupled_grad
        megatron_fsdp_cuda_graph_mode gtp_weight_remat_size expert_gtp_weight_remat_size""",
    "FP8 and FP4 are for the layers' matrix products, with the recipes of Transformer Engine": """
        fp8_dot_product_attention fp8_multi_head_attention quant_recipe activation_func_fp8_input_store
        disable_parameter_transpose_cache""",
    "weights stay in bf16, with an additional copy in FP8 or FP4": "fp8_param fp4_param",
    "Transformer Engine 2 ignores it: weight gradients are computed in FP8 too": "fp8_wgrad",
    "activations are offloaded to the host by entire layers (runtime.cpu_offloading_num_layers)": """
        cpu_offloading_double_buffering""",
    "Transformer Engine's standard norms are used": "memory_efficient_layer_norm",
    "a micro-batch is not split into chunks within a layer": "use_mamba_mem_eff_path",
}
"""Fields of megatron-core with the same reason, where no flag has their name."""


@dataclass(frozen=True)
class Group:
    """Flags that have one answer."""

    answer: Answer
    where: str
    """Its reason."""
    flags: tuple[str, ...]
    fields: tuple[str, ...]
    """Those of megatron-core that have no flag of their name."""


GROUPS = tuple(
    Group(answer, where, tuple(name.rstrip("=*") for name in names.split()), tuple(_FIELDS.get(where, "").split()))
    for answer, reasons in _FLAGS.items()
    for where, names in reasons.items()
)


def by_reason(answer: Answer) -> dict[str, str]:
    """The names of the flags that have an answer, by its reason, each with how many words it takes."""
    return _FLAGS[answer]
