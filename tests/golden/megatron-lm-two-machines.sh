#!/usr/bin/env bash
# The job llama3-8b as flags of Megatron-LM. Rendered by orchestrator; every value is quoted.
#
# Without a flag of Megatron-LM, and not said:
#   model.vocab_size: 128256 (Megatron-LM takes it from the tokenizer's files)
#   checkpoint.save_seconds: 1800 (Megatron-LM saves at fixed steps only)
#   model.preset: llama3-8b (its values are flags)
#
# Said in other words:
#   data.tokenizer.path: data/llama3/tokenizer.json (Megatron-LM takes the folder that it is in)
#   schedule.train_tokens: 100000000000 (--train-samples 12207424)
#   schedule.train_samples: null (--train-samples 12207424)
#   schedule.drop_last: false (--train-samples 12207424, which Megatron-LM rounds down)
set -euo pipefail

: "${MASTER_ADDR:?set MASTER_ADDR to the address of the first machine}"
: "${NODE_RANK:?set NODE_RANK to 0 on the first machine, 1 on the second, and so on}"
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_DEBUG=WARN

DISTRIBUTED_ARGS=(
  --nproc-per-node 8
  --nnodes 2
  --node-rank "${NODE_RANK}"
  --master-addr "${MASTER_ADDR}"
  --master-port "${MASTER_PORT:-29500}"
)

MODEL_ARGS=(
  --num-layers 32
  --hidden-size 4096
  --num-attention-heads 32
  --seq-length 8192
  --position-embedding-type rope
  --rotary-base 500000
  --normalization RMSNorm
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --hidden-dropout 0.0
  --attention-dropout 0.0
  --swiglu
  --ffn-hidden-size 14336
  --max-position-embeddings 8192
  --group-query-attention
  --num-query-groups 8
)

MODEL_PARALLEL_ARGS=(
  --tensor-model-parallel-size 4
  --use-distributed-optimizer
  --overlap-grad-reduce
  --sequence-parallel
  --overlap-param-gather
  --tp-comm-overlap
)

TRAINING_ARGS=(
  --micro-batch-size 1
  --lr 0.0003
  --min-lr 3e-05
  --weight-decay 0.1
  --adam-beta2 0.95
  --lr-decay-style cosine
  --bf16
  --seed 1234
  --global-batch-size 512
  --rampup-batch-size 64 64 1000000
  --train-samples 12207424
  --lr-warmup-samples 500000
)

CHECKPOINT_ARGS=(
  --async-save
)

EVALUATION_ARGS=(
  --log-interval 1
  --eval-interval 500
  --eval-iters 10
)

DATA_ARGS=(
  --data-path 0.8 data/web 0.2 data/code
  --split 969,30,1
  --tokenizer-type HuggingFaceTokenizer
  --tokenizer-model data/llama3
)

RUNTIME_ARGS=(
  --cross-entropy-loss-fusion
  --cross-entropy-fusion-impl te
  --manual-gc
)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
  "${MODEL_ARGS[@]}" \
  "${MODEL_PARALLEL_ARGS[@]}" \
  "${TRAINING_ARGS[@]}" \
  "${CHECKPOINT_ARGS[@]}" \
  "${EVALUATION_ARGS[@]}" \
  "${DATA_ARGS[@]}" \
  "${RUNTIME_ARGS[@]}"
