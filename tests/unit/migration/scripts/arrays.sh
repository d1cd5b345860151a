#!/bin/bash
# A 355M GPT on one machine: ./arrays.sh CHECKPOINTS VOCAB MERGES DATA
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}

GPUS=8
NODES=1
TP=${TP:-2}
PP=2
MICRO=4
# the global batch is that of 16 micro-batches
BATCH=$((MICRO * 16 * GPUS * NODES / (TP * PP)))

CHECKPOINTS=$1
VOCAB=$2
MERGES=$3
DATA="0.3 ${4}/books 0.7 ${4}/web"

DISTRIBUTED=(
    --nproc_per_node $GPUS
    --nnodes $NODES
    --master_addr localhost
    --master_port 6000
)

MODEL=(
    --num-layers 24
    --hidden-size 1024
    --num-attention-heads 16
    --seq-length 1024
    --max-position-embeddings 2048   # longer than the sequence, for later
    --attention-backend auto
)

TRAINING=(
    --micro-batch-size "$MICRO"
    --global-batch-size $BATCH
    --train-iters 5000
    --lr 1.5e-4
    --min-lr 1.0e-5
    --lr-decay-style cosine
    --lr-warmup-fraction .01
    --weight-decay 1e-2
    --adam-beta2 .95
    --clip-grad 1.0
    --bf16
    --use-distributed-optimizer
    --overlap-grad-reduce
)

if [ "$TP" -gt 1 ]; then
    TRAINING+=(--sequence-parallel)
fi

PARALLEL=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size ${PP}
    --num-layers-per-virtual-pipeline-stage 3
)

OUTPUT=(
    --log-interval 10
    --save-interval 1000
    --eval-interval 500
    --eval-iters 20
    --save "$CHECKPOINTS"
    --load "$CHECKPOINTS"
    --tensorboard-dir "${CHECKPOINTS}/tensorboard"
)

torchrun "${DISTRIBUTED[@]}" pretrain_gpt.py \
    "${MODEL[@]}" \
    ${TRAINING[@]} \
    ${PARALLEL[@]} \
    --data-path $DATA --vocab-file "$VOCAB" --merge-file "$MERGES" --split 949,50,1 \
    ${OUTPUT[@]}
